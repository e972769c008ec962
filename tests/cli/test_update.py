"""`longtail update` end to end, and what it refuses."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("gensim")

from longtail import load_model
from longtail.cli import app
from longtail.models.dxml.model import DXML

WORDS = {
    "beer": ["hops", "malt", "yeast", "brew"],
    "bread": ["flour", "oven", "crust", "dough"],
    "chess": ["rook", "pawn", "opening", "mate"],
    "sailing": ["wind", "mast", "harbour", "rope"],
}
SMALL = ["dim=16", "hidden=32", "walks=20", "neighbours=5", "learning_rate=0.01", "device=cpu"]


def write_texts(path, labels, n=120, seed=0, more=()):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        label = str(rng.choice(labels))
        words = [*rng.choice(WORDS.get(label, ["hops", "malt"]), 3), *more]
        lines.append(json.dumps({"text": " ".join(words), "labels": [label]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("update")
    data = write_texts(folder / "train.jsonl", sorted(WORDS))
    settings = [part for pair in SMALL for part in ("--set", pair)]
    command = ["train", data, "--model", "dxml", "--valid", 0, "--out", folder / "model"]
    code, output = run(*command, *settings)
    assert code == 0, output
    return folder / "model"


@pytest.fixture
def model(trained, tmp_path):
    load_model(trained).save(tmp_path / "model")
    return tmp_path / "model"


def best(model, text):
    return model.predict([text], k=2).names[0]


@pytest.mark.parametrize("options", [[], ["--train"]])
def test_new_labels_are_predicted_afterwards(model, tmp_path, options):
    data = write_texts(tmp_path / "new.jsonl", ["mead"], n=30, more=["wind", "flour"])
    code, output = run("update", model, data, *options)
    assert code == 0, output
    assert "Added 30 documents with 1 new label (mead); the dxml model in" in output
    assert "now has 150 documents and 5 labels" in output
    updated = load_model(model)
    assert updated.training_counts_.n_documents == 150
    assert "mead" in best(updated, "hops malt wind flour")
    assert best(updated, "rook pawn mate")[0] == "chess"


def test_documents_without_known_words_are_not_counted(model, tmp_path):
    data = write_texts(tmp_path / "new.jsonl", ["mead"], n=3)
    with data.open("a") as file:
        file.write(json.dumps({"text": "zymurgy", "labels": ["cider"]}) + "\n")
    code, output = run("update", model, data)
    assert code == 0, output
    assert "Added 3 documents with 1 new label (mead); the dxml model in" in output
    assert "now has 123 documents and 5 labels" in output
    assert "1 of 4 documents were left out" in output
    assert "1 new label (cider) cannot be predicted" in output


def test_a_label_known_by_name_but_never_seen_is_new(tmp_path):
    rng = np.random.default_rng(0)
    X = sp.csr_matrix((rng.random((60, 8)) < 0.4).astype(np.float32))
    Y = sp.csr_matrix((rng.random((60, 4)) < [0.5, 0.5, 0.5, 0]).astype(np.float32))
    settings = DXML.from_settings(dict(pair.split("=") for pair in SMALL))
    settings.fit(X, Y).save(tmp_path / "model")
    (tmp_path / "rows.txt").write_text("2 8 4\n3 1:1.0 3:2.0\n0,3 2:1.0\n")
    code, output = run("update", tmp_path / "model", tmp_path / "rows.txt")
    assert code == 0, output
    assert "Added 2 documents with 1 new label (3)" in output


def test_another_folder_leaves_the_first_as_it_is(model, tmp_path):
    data = write_texts(tmp_path / "new.jsonl", ["mead"], n=3)
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    code, output = run("update", model, data, "--out", tmp_path / "second")
    assert code == 0, output
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before
    assert len(load_model(tmp_path / "second").label_names_) == 5
    code, output = run("update", model, data, "--out", tmp_path / "second")
    assert code == 2
    assert "already exists; choose another --out" in output


def test_an_interrupted_update_leaves_the_old_model(model, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    data = write_texts(tmp_path / "new.jsonl", ["mead"], n=3)
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    monkeypatch.setattr(DXML, "update_rows", stop)
    code, output = run("update", model, data)
    assert code == 130
    assert "is as it was before." in output
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before


def test_attention_xml_takes_in_a_new_label(tmp_path):
    data = write_texts(tmp_path / "train.jsonl", sorted(WORDS))
    sizes = ("hidden=4", "head=4", "word_dim=4", "levels=0", "epochs=1", "device=cpu")
    settings = [word for size in sizes for word in ("--set", size)]
    command = ["train", data, "--model", "attention-xml", "--valid", 0, "--out", tmp_path / "model"]
    assert run(*command, *settings)[0] == 0
    new = write_texts(tmp_path / "new.jsonl", ["mead"], n=3)
    code, output = run("update", tmp_path / "model", new)
    assert code == 0, output
    assert "mead" in load_model(tmp_path / "model").label_names_


def test_a_model_that_cannot_be_updated(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.models.attention_xml.model.AttentionXML.can_update", False)
    data = write_texts(tmp_path / "train.jsonl", sorted(WORDS))
    sizes = ("hidden=4", "head=4", "word_dim=4", "levels=0", "epochs=1", "device=cpu")
    settings = [word for size in sizes for word in ("--set", size)]
    command = ["train", data, "--model", "attention-xml", "--valid", 0, "--out", tmp_path / "model"]
    assert run(*command, *settings)[0] == 0
    code, output = run("update", tmp_path / "model", data)
    assert code == 2
    assert "Error: attention-xml cannot be updated; models that can: " in output
    assert "dxml" in output


@pytest.mark.parametrize("options", [[], ["--train"]])
def test_linear_takes_in_new_labels(tmp_path, options):
    data = write_texts(tmp_path / "train.jsonl", sorted(WORDS))
    assert run("train", data, "--model", "linear", "--out", tmp_path / "linear")[0] == 0
    new = write_texts(tmp_path / "new.jsonl", ["mead"], n=30, more=["wind", "flour"])
    code, output = run("update", tmp_path / "linear", new, *options)
    assert code == 0, output
    assert "Added 30 documents with 1 new label (mead); the linear model in" in output
    updated = load_model(tmp_path / "linear")
    assert "mead" in best(updated, "hops malt wind flour")
    assert best(updated, "rook pawn mate")[0] == "chess"


def test_another_feature_space(model, tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("1 5 3\n0,2 1:1.0 3:2.0\n")
    code, output = run("update", model, rows)
    assert code == 2
    assert "this model was trained on texts and cannot read feature rows" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"text": "hops", "labels": []}\n', "of 1 document, none carries a label"),
        ("", "empty"),
    ],
)
def test_nothing_to_add(model, tmp_path, text, message):
    data = tmp_path / "new.jsonl"
    data.write_text(text)
    code, output = run("update", model, data)
    assert code == 2
    assert message in output


def test_what_is_no_model_and_what_is_no_data(model, tmp_path):
    data = write_texts(tmp_path / "new.jsonl", ["mead"], n=3)
    code, output = run("update", tmp_path / "nothing", data)
    assert code == 2
    assert "nothing" in output
    code, output = run("update", model, tmp_path / "missing.jsonl")
    assert code == 2
    assert "missing.jsonl" in output
