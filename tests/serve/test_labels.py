"""What a server tells about labels, and in which order to look at documents."""

import numpy as np
import pytest
from command_line import planted_rows
from served import served, train_planted

import longtail
from longtail.evaluation.ordering import order_documents


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model that keeps training documents, a fusion of it, and one that keeps none."""
    folder = tmp_path_factory.mktemp("models")
    texts, labels = zip(*planted_rows(200, 0), strict=True)
    held = [[*each, "thing"] if i % 2 else list(each) for i, each in enumerate(labels)]
    longtail.KNN().fit(list(texts), held).save(folder / "near")
    longtail.Fusion(members="linear,knn").fit(list(texts), held).save(folder / "both")
    train_planted(folder / "planted")
    with served(folder / "near", folder / "both", folder / "planted") as running:
        yield running, dict(enumerate(zip(texts, held, strict=True)))


@pytest.mark.parametrize("name", ["near", "both"])
def test_labels_come_with_documents_and_what_is_like_them(models, name):
    running, documents = models
    url = f"/v1/models/{name}/labels"
    (found,) = running.client.get(url, params={"q": "beer"}).json()["labels"]
    beer = running.client.get(f"{url}/{found['id']}").json()
    assert 1 <= len(beer["examples"]) <= 5
    for each in beer["examples"]:
        text, labels = documents[each["number"]]
        assert each["text"] == text[:200]
        assert set(each["labels"]) == set(labels)
        assert "beer" in labels
    with_beer = {i for i, (_, labels) in documents.items() if "beer" in labels}
    for other in beer["neighbours"]:
        carried = {i for i, (_, labels) in documents.items() if other["label"] in labels}
        cosine = len(with_beer & carried) / np.sqrt(len(with_beer) * len(carried))
        assert other["similarity"] == pytest.approx(cosine, abs=1e-6)
    assert beer["neighbours"][0]["label"] == "thing"


def test_a_fusion_says_which_members_spoke(models):
    running, _ = models
    body = {"text": "hops and malt, then yeast", "k": 1, "explain": True}
    answer = running.client.post("/v1/models/both/predict", json=body).json()
    (label,) = answer["documents"][0]["labels"]
    assert set(label["why"]["members"]) == {"linear", "knn"}
    asked = {"text": body["text"], "label": label["label"]}
    found = running.client.post("/v1/models/both/explain", json=asked).json()
    assert {vote["member"] for vote in found["votes"]} == {"linear", "knn"}
    assert found["neighbours"][0]["text"]


@pytest.mark.parametrize("by", ["unsure", "useful"])
def test_documents_are_ordered(models, by):
    running, _ = models
    texts = [text for text, _ in planted_rows(30, 5)] + ["", "unknown words"]
    body = {"texts": texts, "by": by}
    answer = running.client.post("/v1/models/planted/order", json=body).json()
    model = running.state.hosted["planted"].current.model
    order, values = order_documents(model.predict(texts, 10), model.training_counts_, by)
    assert answer["order"] == order.tolist()
    assert answer["values"] == pytest.approx(values.tolist(), abs=1e-4)


def test_an_order_that_cannot_be(models):
    running, _ = models
    url = "/v1/models/planted/order"
    assert running.client.post(url, json={"texts": []}).json()["order"] == []
    none = running.client.post(url, json={})
    assert none.json()["detail"] == "give one of texts and rows. Got none instead."
    odd = running.client.post(url, json={"texts": ["x"], "by": "chance"})
    assert odd.status_code == 422
