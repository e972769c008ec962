"""Label Studio's ML backend: its documented requests, over HTTP, against a model that learns."""

import time

import pytest
from command_line import planted_rows
from served import served, train_planted

import longtail
from longtail.serve.feedback import as_dataset, read_feedback

CONFIG = """<View><Text name="text" value="$text"/>
  <Choices name="topic" toName="text" choice="multiple">
    <Choice value="beer"/><Choice value="chess"/><Choice value="sailing"/><Choice value="wine"/>
  </Choices></View>"""
PROJECT = "7.1700000000"  # its id, and when it was made
URL = "/label-studio/planted"


@pytest.fixture
def running(tmp_path):
    train_planted(tmp_path / "planted")
    with served(tmp_path / "planted", feedback=tmp_path / "said.db") as found:
        yield found


def annotated(text, choices, action="ANNOTATION_CREATED", **more):
    result = {"id": "a1", "from_name": "topic", "to_name": "text", "type": "choices"}
    return {
        "action": action,
        "project": {"id": 7, "title": "Topics", "label_config": CONFIG, "created_by": {"id": 1}},
        "task": {"id": 12, "data": {"text": text}, "project": 7, "is_labeled": True},
        "annotation": {
            "id": 3,
            "completed_by": 5,
            "was_cancelled": False,
            "ground_truth": False,
            "lead_time": 4.2,
            "result": [{**result, "value": {"choices": choices}}],
            **more,
        },
    }


def test_it_is_connected_and_suggests(running, tmp_path):
    client = running.client
    assert client.get(f"{URL}/health").json() == {"status": "UP", "model_class": "linear"}
    version = client.get("/v1/models/planted").json()["version"]
    setup = {
        "project": PROJECT,
        "schema": CONFIG,
        "hostname": "http://localhost:8080",
        "access_token": "0123456789",
        "extra_params": None,
    }
    assert client.post(f"{URL}/setup", json=setup).json() == {"model_version": version}
    texts = [text for text, _ in planted_rows(20, 3)]
    asked = {
        "tasks": [{"id": i, "data": {"text": text}} for i, text in enumerate(texts)],
        "model_version": version,
        "project": PROJECT,
        "label_config": CONFIG,
        "params": {"login": None, "password": None, "context": None},
    }
    results = client.post(f"{URL}/predict", json=asked).json()["results"]
    model = longtail.load_model(tmp_path / "planted")
    for found, own in zip(results, model.predict(texts, threshold="auto").to_list(), strict=True):
        wanted = [each for each in own if each["label"] in ("beer", "chess", "sailing")]
        assert found["model_version"] == version
        given = found["result"][0]["value"]["choices"] if wanted else []
        assert given == [each["label"] for each in wanted]
        scores = [each["score"] for each in wanted]
        assert found["score"] == pytest.approx(sum(scores) / len(scores) if scores else 0)


def test_without_probabilities_it_suggests_the_best_five(tmp_path):
    texts, labels = zip(*planted_rows(100, 0), strict=True)
    longtail.Linear().fit(list(texts), list(labels)).save(tmp_path / "planted")
    with served(tmp_path / "planted") as running:
        asked = {"tasks": [{"data": {"text": "rook pawn"}}], "label_config": CONFIG}
        (found,) = running.client.post(f"{URL}/predict", json=asked).json()["results"]
        assert found["result"][0]["value"]["choices"][0] == "chess"
        refused = running.client.post(f"{URL}/webhook", json=annotated("x", ["beer"]))
        assert refused.status_code == 409


def test_annotations_are_stored_and_learned_from(running, tmp_path):
    client, file = running.client, tmp_path / "said.db"
    told = client.post(f"{URL}/webhook", json=annotated("yeast and a rope", ["wine", "beer"]))
    assert told.status_code == 201
    assert told.json()["status"] == "ok"
    client.post(f"{URL}/webhook", json=annotated("rope and yeast", ["wine"], "ANNOTATION_UPDATED"))
    for event in (
        annotated("skipped", ["wine"], was_cancelled=True),
        annotated("empty", []),
        {"action": "PROJECT_UPDATED", "project": {"id": 7}},
    ):
        assert client.post(f"{URL}/webhook", json=event).json()["status"] == "ignored"
    first, second = read_feedback(file).values()
    assert (first.text, first.by) == ("yeast and a rope", "label-studio:5")
    assert first.added == ["wine", "beer"]
    assert (second.added, second.document) == (["wine"], "label-studio:12")

    before = client.get("/v1/models/planted").json()
    start = {"action": "START_TRAINING", "project": {"id": 7, "label_config": CONFIG}}
    assert client.post(f"{URL}/webhook", json=start).json()["status"] == "ok"
    end = time.monotonic() + 60
    while client.get("/v1/models/planted").json()["version"] == before["version"]:
        assert time.monotonic() < end, "the update does not come"
        time.sleep(0.2)
    after = client.get("/v1/models/planted").json()
    assert after["labels"] == before["labels"] + 1
    answer = client.post("/v1/models/planted/predict", json={"text": "yeast rope", "k": 5}).json()
    assert "wine" in [each["label"] for each in answer["documents"][0]["labels"]]


@pytest.mark.parametrize("taken_back", [{"result": []}, {"was_cancelled": True}])
def test_labels_that_are_taken_back_are_not_learned(running, tmp_path, taken_back):
    for text in ("yeast and a rope", "rope and yeast"):
        running.client.post(f"{URL}/webhook", json=annotated(text, ["wine"]))
    event = annotated("rope and yeast", ["wine"], "ANNOTATION_UPDATED", **taken_back)
    assert running.client.post(f"{URL}/webhook", json=event).json()["result"] == {"feedback": 3}
    file = tmp_path / "said.db"
    learned = as_dataset(list(read_feedback(file).values()), file)
    assert learned.texts == ["yeast and a rope"]


def test_mistakes_get_a_sentence(running):
    def post(path, body):
        answer = running.client.post(f"{URL}/{path}", json=body)
        assert answer.status_code == 422
        return answer.json()["detail"]

    assert "no Choices or Taxonomy" in post("setup", {"project": PROJECT, "schema": "<View/>"})
    task = {"tasks": [{"data": {"image": "x"}}], "label_config": CONFIG}
    assert post("predict", task) == "task 1: its data has no text 'text'"
    assert post("predict", {"tasks": []}) == "'label_config' is missing"
    event = {"action": "ANNOTATION_CREATED", "project": {"id": 7}}
    assert post("webhook", event) == "the event has no project.label_config"
    many = {"tasks": [{"data": {"text": "x"}}] * 1001, "label_config": CONFIG}
    assert post("predict", many).startswith("1,001 documents in one request")
    assert running.client.get("/label-studio/plantd/health").status_code == 404
