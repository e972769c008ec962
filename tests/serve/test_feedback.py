"""Feedback: what is stored, what survives, and what becomes of it."""

import json
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import fail, run, succeed
from served import served, train_planted

import longtail
from longtail.errors import DataError
from longtail.serve.feedback import Correction, FeedbackStore, keep_last, read_feedback
from longtail.serve.hosting import host_all

TEXT = "hops and malt, then yeast"
FEEDBACK = "/v1/models/planted/feedback"


def store(path, *corrections):
    opened = FeedbackStore(path, create=True)
    opened.add(corrections)
    opened.close()
    return path


def test_what_is_sent_is_stored(tmp_path):
    folder, path = train_planted(tmp_path / "planted"), tmp_path / "said.db"
    said = {
        "text": "Zürich \u202e\0 <b>",
        "shown": [{"label": "beer", "score": 0.5}],
        "accepted": ["beer"],
        "rejected": ["bread"],
        "added": ["a new\nlabel"],
        "by": "ab",
        "document": "17",
    }
    with served(folder, feedback=path) as running:
        version = running.client.get("/health/ready").json()["models"]["planted"]
        answer = running.client.post(FEEDBACK, json=said)
        assert (answer.status_code, answer.json()) == (201, {"id": 1})
        twice = running.client.post(FEEDBACK, json={**said, "added": ["beer"]})
        assert (twice.status_code, "'beer' is named twice" in twice.json()["detail"]) == (422, True)
        with ThreadPoolExecutor(8) as pool:
            more = pool.map(lambda _: running.client.post(FEEDBACK, json=said), range(40))
            assert sorted(each.json()["id"] for each in more) == list(range(2, 42))
    kept = read_feedback(path)[1]
    assert (kept.version, kept.labels) == (version, ["beer", "a new\nlabel"])
    for name in ("text", "shown", "rejected", "by", "document"):
        assert getattr(kept, name) == said[name]


def test_a_server_without_a_file_says_so(tmp_path):
    with served(train_planted(tmp_path / "planted")) as running:
        answer = running.client.post(FEEDBACK, json={"text": "x"})
        assert answer.status_code == 409
        assert "--feedback FILE.db" in answer.json()["detail"]


def test_a_full_disk_is_said_without_the_path(tmp_path, caplog):
    folder, path = train_planted(tmp_path / "planted"), tmp_path / "said.db"
    with served(folder, feedback=path) as running:
        connection = running.state.feedback._connection
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are
        refused = running.client.post(FEEDBACK, json={"text": "x" * 100_000})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["detail"] == "the feedback could not be stored; try again later"
        assert f"{path}: the feedback cannot be read or written" in caplog.text
        connection.execute("PRAGMA max_page_count = 1000000")
        assert running.client.post(FEEDBACK, json={"text": "x"}).json() == {"id": 1}


def test_what_fails_as_it_is_committed_leaves_nothing_open(tmp_path):
    opened = FeedbackStore(tmp_path / "said.db", create=True)
    opened._connection.executescript(
        """
        PRAGMA foreign_keys = ON;
        CREATE TABLE one (x PRIMARY KEY);
        CREATE TABLE two (x REFERENCES one DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER breaking AFTER INSERT ON feedback BEGIN INSERT INTO two VALUES (1); END;
        """
    )
    with pytest.raises(DataError, match="cannot be read or written"):
        opened.add([Correction("m", "v", "t")])
    opened._connection.execute("DROP TRIGGER breaking")
    opened.add([Correction("m", "v", "u")])
    assert [each.text for each in opened.read().values()] == ["u"]
    opened.close()


def test_a_model_behind_a_link_keeps_the_name_of_the_link(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.serve.app.LOOK_SECONDS", 0.02)
    versions = [train_planted(tmp_path / f"v{i}", i) for i in (7, 8)]
    link, path = tmp_path / "current", tmp_path / "said.db"
    link.symlink_to(versions[0])
    with served(link, feedback=path) as running:
        (before,) = running.client.get("/v1/models").json()["models"]
        (tmp_path / "next").symlink_to(versions[1])
        (tmp_path / "next").replace(link)
        end = time.monotonic() + 20
        while (after := running.client.get("/v1/models").json()["models"][0]) == before:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert before["name"] == after["name"] == "current"
        said = {"text": TEXT, "added": ["wine"]}
        assert running.client.post("/v1/models/current/feedback", json=said).status_code == 201
    assert list(host_all([link])) == ["current"]  # as a server that is started now
    assert list(host_all([versions[0] / ".." / "v8"])) == ["v8"]
    told = succeed("update", link, "--feedback", path, "--out", tmp_path / "new").stdout
    assert "1 new label (wine)" in told


def test_what_was_stored_survives_a_kill(tmp_path):
    path = tmp_path / "said.db"
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from longtail.serve.feedback import Correction, FeedbackStore;"
        "store = FeedbackStore(Path(sys.argv[1]), create=True);"
        "print(*store.add([Correction('m', 'v', 't')] * 3), flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (-9, "1 2 3\n")
    assert list(read_feedback(path)) == [1, 2, 3]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        read_feedback(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(DataError, match="cannot be used for feedback"):
        FeedbackStore(tmp_path / "text.db", create=True)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(DataError, match="not one with feedback"):
        FeedbackStore(tmp_path / "other.db", create=True)


def test_a_damaged_row_is_named(tmp_path):
    path = store(tmp_path / "said.db", Correction("m", "v", "t"))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE feedback SET added = '['")
    other.close()
    with pytest.raises(DataError, match="the feedback 1 is damaged"):
        read_feedback(path)


def test_the_last_correction_of_a_text_counts():
    first, second = Correction("m", "v", "t", added=["a"]), Correction("m", "v", "t", added=["b"])
    other = Correction("n", "v", "t")
    assert keep_last([first, other, second]) == [second, other]


def test_export_and_report(tmp_path):
    path = store(
        tmp_path / "said.db",
        Correction("m", "v", "one", accepted=["a", "b"], rejected=["c"], at="2024-01-05 10:00:00"),
        Correction("m", "v", "two", rejected=["c"], added=["d"], at="2024-02-05 10:00:00"),
        Correction("other", "v", "three", accepted=["z"], at="2024-02-06 10:00:00"),
    )
    succeed("feedback", "export", path, tmp_path / "out.jsonl", "--model", "m")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["text"], line["labels"]) for line in lines] == [
        ("one", ["a", "b"]),
        ("two", ["d"]),
    ]
    assert longtail.load(tmp_path / "out.jsonl").train.label_names == ["a", "b", "d"]
    found = json.loads(succeed("feedback", "report", path, "--json", "-").stdout)
    assert found["months"]["2024-01"] == {"documents": 1, "suggestions": 3, "right": 2}
    assert found["rejected"] == {"c": 2}
    assert "66.7" in succeed("feedback", "report", path).stdout
    assert "there is on: m, other" in fail("feedback", "report", path, "--model", "x")
    assert "already exists" in fail("feedback", "export", path, tmp_path / "out.jsonl")


def test_feedback_is_not_replaced_by_what_is_made_of_it(tmp_path):
    path = store(tmp_path / "said.db", Correction("m", "v", "one", accepted=["a"]))
    expected = f"{path} is what is read; choose another"
    assert expected in fail("feedback", "export", path, path, "--overwrite")
    assert expected in fail("feedback", "report", path, "--json", path)
    assert len(read_feedback(path)) == 1
    assert "-n must be at least 0. Got -1 instead." in fail("feedback", "report", path, "-n", -1)
    output = succeed("feedback", "export", path, tmp_path / "out.jsonl").output
    assert output == f"1 document is in {tmp_path / 'out.jsonl'}\n"


def test_update_leaves_the_model_where_feedback_cannot_be_noted(tmp_path, monkeypatch):
    folder = train_planted(tmp_path / "planted")
    path = store(tmp_path / "said.db", Correction("planted", "v", TEXT, accepted=["new"]))
    expected = "--text says how NEWDATA is read; leave it out with --feedback"
    assert expected in fail("update", folder, "--feedback", path, "--text", "body")
    monkeypatch.setattr("longtail.serve.feedback.BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "the feedback cannot be read or written" in fail("update", folder, "--feedback", path)
    other.close()
    assert "new" not in longtail.load_model(folder).label_names_
    assert (
        "Added 1 document with 1 new label" in succeed("update", folder, "--feedback", path).output
    )


def test_update_learns_from_feedback_once(tmp_path):
    folder, path = train_planted(tmp_path / "planted"), tmp_path / "said.db"
    corrections = [
        Correction("planted", "v", f"{TEXT} zymurgy {i}", accepted=["beer"], added=["brewing"])
        for i in range(20)
    ]
    store(path, *corrections, Correction("planted", "v", "nothing is right", rejected=["beer"]))
    result = succeed("update", folder, "--feedback", path)
    assert "Added 20 documents with 1 new label (brewing)" in result.output
    top = longtail.load_model(folder).predict(["zymurgy " + TEXT], 2)
    assert "brewing" in top.names[0]
    assert "no new feedback" in fail("update", folder, "--feedback", path)
    assert "and not both" in fail("update", folder)
    elsewhere = train_planted(tmp_path / "elsewhere")
    assert "no feedback on a model 'elsewhere'" in fail("update", elsewhere, "--feedback", path)
    assert run("update", "--help").exit_code == 0
