"""The shortcut answers what the application would, byte by byte, or leaves it to it."""

import json

import httpx
import numpy as np
import pytest
from served import served, train_planted

from longtail.serve.hosting import Asked, Version, name_labels, write_labels
from longtail.serve.shortcut import Question, read_question
from longtail.topk import NO_LABEL, TopK

PREDICT = "/v1/models/planted/predict"
LONG_WAY = {"Content-Type": "application/x+json"}  # JSON, too, but not plainly


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = train_planted(tmp_path_factory.mktemp("models") / "planted")
    with served(folder) as running:
        yield running.client


@pytest.mark.parametrize(
    "body",
    [
        {"text": "hops and malt"},
        {"text": ""},
        {"text": "naïve 東京 \U0001f37a hops"},
        {"texts": ["hops", "a sail", ""], "k": 2},
        {"texts": []},
        {"text": "hops", "threshold": 1},
        {"text": "hops", "threshold": 0.3, "k": 4},
        {"text": "hops", "threshold": "auto-document", "k": None},
        # What is wrong is said in the same words.
        {"text": "hops", "language": "xx"},
        {"texts": ["hops"] * 1001},
        {"text": "half \ud800"},
        {"text": "hops", "k": True},
        {"text": "hops", "k": 1001},
        {"text": "hops", "threshold": 1.5},
        {"text": "hops", "texts": ["hops"]},
        {"texts": ["hops", 7]},
        {"text": None},
        ["hops"],
    ],
)
def test_both_ways_give_the_same_answer(client, body):
    sent = json.dumps(body).encode()
    short = client.post(PREDICT, content=sent, headers={"Content-Type": "application/json"})
    long = client.post(PREDICT, content=sent, headers=LONG_WAY)
    assert short.status_code == long.status_code
    assert short.content == long.content
    assert _stable(short) == _stable(long)


def _stable(answer: httpx.Response):
    return sorted(pair for pair in answer.headers.items() if pair[0] != "date")


def test_a_body_in_pieces_goes_the_long_way(client):
    whole = json.dumps({"text": "hops"}).encode()
    headers = {"Content-Type": "application/json"}
    pieces = client.post(PREDICT, content=iter([whole[:5], whole[5:]]), headers=headers)
    assert pieces.content == client.post(PREDICT, content=whole, headers=headers).content


def test_a_bug_is_logged_without_the_text(client, monkeypatch, caplog):
    def fail(self, documents, asked):
        raise ZeroDivisionError(documents[0])

    monkeypatch.setattr(Version, "predict", fail)
    for headers in ({"Content-Type": "application/json"}, LONG_WAY):
        caplog.clear()
        answer = client.post(PREDICT, content=b'{"text": "hops"}', headers=headers)
        assert answer.status_code == 500
        assert answer.json()["detail"] == "a bug in longtail, ZeroDivisionError"
        assert "in fail" in caplog.text
        assert "hops" not in caplog.text


def test_what_is_plainly_right():
    assert read_question(b'{"text": "a"}') == Question(["a"], Asked(None))
    full = b'{"texts": ["a", "b"], "k": 3, "threshold": 0.5, "language": "fi"}'
    assert read_question(full) == Question(["a", "b"], Asked(3, 0.5, "fi"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"rows": []}',
        b'{"text": "a", "explain": true}',
        b'{"text": "a", "threshold": NaN}',
        b'{"text": "a", "threshold": true}',
        b'{"text": "a", "threshold": ["auto"]}',
        b'{"text": "a", "language": 7}',
    ],
)
def test_what_is_not(body):
    assert read_question(body) is None


def test_labels_are_written_as_json_would():
    labels = np.array([[2, 0, NO_LABEL], [1, 2, 0]], np.int32)
    scores = np.array([[1.0, 1e-6, 0.0], [0.123456789, 1 / 3, 0]], np.float32)
    names = ['"quoted" \\ \n', "\ud800 half", "ünï \u2028"]
    for uris in (None, ("x:1", None, 'x:"3"')):
        top = TopK(labels, scores, tuple(names), uris)
        assert [json.loads(each) for each in write_labels(top)] == name_labels(top)
        assert write_labels(top) == [
            json.dumps(each, separators=(",", ":")) for each in name_labels(top)
        ]
