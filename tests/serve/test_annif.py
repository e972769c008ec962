"""Annif's interface, by the client that people use with Annif."""

import pytest
from served import served, train_planted

import longtail
from longtail.serve.feedback import FeedbackStore

annif_client = pytest.importorskip("annif_client", reason="annif-client is not installed")

TEXT = "hops and malt, then yeast"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = train_planted(tmp_path_factory.mktemp("models") / "planted")
    with served(folder, feedback=folder.parent / "said.db") as found:
        found.folder = folder
        yield found


@pytest.fixture
def client(running):
    return annif_client.AnnifClient(api_base=f"{running.url}/v1/")


def test_projects(client):
    assert client.api_info["version"] == longtail.__version__
    (project,) = client.projects
    assert project["project_id"] == "planted"
    assert project["is_trained"]
    assert project["backend"] == {"backend_id": "linear"}
    assert client.get_project("planted") == project
    with pytest.raises(ValueError, match="there is no model 'nobody'"):
        client.get_project("nobody")


def test_suggest_gives_what_predict_gives(client, running):
    top = longtail.load_model(running.folder).predict([TEXT], 10).to_list()[0]
    found = client.suggest("planted", TEXT)
    assert [{"label": each["label"], "score": each["score"]} for each in found] == top
    assert found[0]["uri"] == "urn:longtail:beer"
    assert client.suggest("planted", TEXT, limit=1) == found[:1]
    least = found[0]["score"]
    assert client.suggest("planted", TEXT, threshold=least) == found[:1]
    with pytest.raises(ValueError, match="no model"):
        client.suggest("nobody", TEXT)


def test_suggest_batch(client):
    documents = [{"text": TEXT, "document_id": "a"}, {"text": "rook and pawn"}]
    first, second = client.suggest_batch("planted", documents, limit=2)
    assert first["document_id"] == "a"
    assert first["results"] == client.suggest("planted", TEXT, limit=2)
    assert second["document_id"] is None
    assert second["results"][0]["label"] == "chess"


def test_learn_is_kept_as_feedback(client, running):
    subjects = [{"uri": "urn:longtail:home%20brewing"}, {"label": "beer", "uri": "other:beer"}]
    assert client.learn("planted", [{"text": TEXT, "subjects": subjects}]).status_code == 204
    store = FeedbackStore(running.folder.parent / "said.db", create=False)
    (kept,) = store.read().values()
    store.close()
    assert (kept.text, kept.labels) == (TEXT, ["home brewing", "beer"])


@pytest.mark.parametrize(
    ("form", "detail"),
    [
        ({}, "'text' is missing"),
        ({"text": "x", "limit": "0"}, "limit must be a whole number from 1 to 1000. Got '0'"),
        ({"text": "x", "limit": "1.5"}, "limit must be a whole number from 1 to 1000. Got '1.5'"),
        ({"text": "x", "threshold": "much"}, "threshold must be a number from 0 to 1. Got 'much'"),
    ],
)
def test_wrong_forms_get_a_sentence(running, form, detail):
    answer = running.client.post("/v1/projects/planted/suggest", data=form)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)
