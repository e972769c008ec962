"""What new users met first, each point by the command that they typed.

The numbers are those of a list of twelve that five kinds of new users made; items of bad input
follow. What a point needs beyond a command is tested where it belongs: scikit-learn's checks in
tests/test_sklearn.py, frames in tests/data/test_frames.py, encodings in tests/cli/test_reading.py,
read-only installations in tests/runtime/test_compiled.py.
"""

import csv
import json
import os
import subprocess

import pytest
from command_line import LONGTAIL, fail, planted_rows, succeed

import longtail
from longtail.models.linear.model import Linear

KINDS = {
    "beer": "Billing Question",
    "bread": "Technical Issue",
    "chess": "Refund Request",
    "sailing": "Account Access",
}


def write_tickets(path, header=("ticket", "title", "message", "kind"), n=60):
    """Write tickets whose messages have line breaks, each with one kind of two words."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        for i, (text, labels) in enumerate(planted_rows(n, seed=3)):
            words = text.split()
            table.writerow((f"t{i}", words[0], "\n".join(words[1:]), KINDS[labels[0]]))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with tickets.csv, and a model of it."""
    folder = tmp_path_factory.mktemp("users")
    data = write_tickets(folder / "tickets.csv", n=150)
    options = ["--text", "title,message", "--labels", "kind", "--model", "linear"]
    succeed("train", data, "--out", folder / "model", *options)
    return folder


def read_table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- the twelve points --------------------------------------------------------------------------


def test_1_predict_keeps_ids_and_columns_and_writes_what_the_name_says(home, tmp_path):
    out = tmp_path / "preds.csv"
    succeed("predict", home / "model", home / "tickets.csv", "--keep", "-k", 1, "--out", out)
    rows = read_table(out)
    assert [row["id"] for row in rows] == [f"t{i}" for i in range(150)]
    assert {"ticket", "title", "message", "kind", "labels", "scores"} <= set(rows[0])
    assert rows[0]["labels"] in KINDS.values()


def test_2_columns_can_be_named_and_unknown_headers_are_listed(tmp_path):
    data = write_tickets(tmp_path / "x.csv", ("a", "b", "c", "d"), n=9)
    assert fail("train", data, "--out", tmp_path / "m") == (
        f"Error: {data}: no column is recognized as the labels; the columns are 'a', 'b', 'c', "
        "'d'; name it with --labels COLUMN (in Python labels='COLUMN')"
    )
    shown = succeed("data", "info", data, "--text", "b,c", "--labels", "d", "--id", "a")
    assert shown.stderr.startswith("Note: text: b + c; labels: d, one a document, e.g. '")


def test_3_a_table_is_never_labelled_line_by_line(home, tmp_path):
    data = write_tickets(tmp_path / "x.csv", ("eins", "zwei", "drei", "vier"))
    assert len(data.read_text().splitlines()) > 180
    result = succeed("predict", home / "model", data)
    assert len(result.stdout.splitlines()) == 60
    assert result.stderr.startswith("Note: text: drei")


def test_4_a_label_of_two_words_is_one_label_and_that_is_said(home):
    shown = succeed("data", "info", home / "tickets.csv")
    assert "4 labels, documents as texts" in shown.stdout
    assert "one a document, e.g. 'Billing Question' (--separator blank splits it)" in shown.stderr


def test_5_labels_are_compared_by_name_and_unknown_ones_are_said(home, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("text,labels\nhops,wine\nrook,go\n")
    assert fail("evaluate", home / "model", other) == (
        "Error: the model knows none of the labels that these documents carry, such as 'go', "
        "'wine'; it knows 'Account Access', 'Billing Question', 'Refund Request', …; use the names "
        "that it was trained with"
    )
    model = longtail.load_model(home / "model")
    alone = write_tickets(tmp_path / "last.csv", n=4)  # its labels have other numbers
    data = longtail.load(alone, text=["title", "message"], labels="kind").train
    told = succeed("evaluate", home / "model", alone, "--json", "-").stdout
    assert longtail.evaluate(model.predict(data), data)["P@1"] == json.loads(told)["P@1"] > 60


def test_6_frames_and_plain_strings_as_labels_are_taken(home):
    texts, labels = zip(*((text, found[0]) for text, found in planted_rows(60, 4)), strict=True)
    frame = {"body": list(texts), "topic": list(labels)}
    by_frame = Linear(trees=1).fit(frame)
    by_lists = Linear(trees=1).fit(list(texts), list(labels))
    assert by_frame.label_names_ == by_lists.label_names_ == sorted(set(labels))
    assert by_frame.predict(frame).to_list() == by_lists.predict(list(texts)).to_list()


def test_7_there_are_scikit_learn_estimators():
    pipeline = pytest.importorskip("sklearn.pipeline")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    from longtail.sklearn import LinearClassifier

    texts, labels = zip(*planted_rows(60, 5), strict=True)
    steps = pipeline.make_pipeline(text.TfidfVectorizer(), LinearClassifier())
    assert steps.fit(list(texts), list(labels)).score(list(texts), list(labels)) > 0.5


def test_8_what_python_prints_is_short_and_has_names(home):
    splits = longtail.load(home / "tickets.csv")
    model = longtail.load_model(home / "model")
    top = model.predict(["hops malt brew"])
    assert all(len(repr(each)) < 2000 for each in (splits, splits.train, model, top))
    assert "Billing Question" in repr(top)
    assert "4 labels, trained 20" in repr(model)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_9_encodings_and_semicolons_are_found_out(tmp_path, encoding):
    data = tmp_path / "daten.csv"
    rows = "".join(f"{i};Über den Bäcker Nummer {i} – „frisch“;Brötchen\n" for i in range(12))
    data.write_bytes(("Nr;Beschreibung;Schlagwörter\n" + rows).encode(encoding))
    said = succeed("data", "info", data).stderr
    assert said == (
        "Note: text: Beschreibung; labels: Schlagwörter, one a document, e.g. 'Brötchen'; "
        f"encoding: {encoding}\n"
    )


def test_10_uris_and_corpora_of_annif_are_kept(tmp_path):
    data, lines = tmp_path / "corpus.tsv", []
    for text, labels in planted_rows(60, 6):
        lines.append(text + "\t" + " ".join(f"<http://example.org/{each}>" for each in labels))
    data.write_text("\n".join(lines))
    vocab = tmp_path / "vocab.tsv"
    vocab.write_text("".join(f"<http://example.org/{each}>\t{each}\n" for each in sorted(KINDS)))
    train = ["train", data, "--model", "linear", "--vocab", vocab, "--language", "en"]
    assert fail(*train, "--out", tmp_path / "m") == (
        "Error: no concept of the vocabulary has a name in the language 'en'; its names have no "
        "language"
    )
    succeed(*train[:-2], "--valid", 0, "--out", tmp_path / "m")
    answer = json.loads(succeed("predict", tmp_path / "m", "-", stdin="hops malt\n").stdout)
    assert answer["labels"][0]["uri"] == "http://example.org/beer"


def test_11_progress_metrics_cards_and_no_run_folder(home, capsys):
    texts, labels = zip(*planted_rows(60, 7), strict=True)
    Linear(trees=1).fit(list(texts), list(labels), progress=True)
    capsys.readouterr()
    shown = succeed("evaluate", home / "model", home / "tickets.csv", "-k", "1,3,5,10").stdout
    assert shown.splitlines()[1].split() == ["@1", "@3", "@5", "@10"]
    assert sorted(each.name for each in home.iterdir()) == ["model", "tickets.csv"]
    card = json.loads(succeed("info", home / "model", "--json", "-").stdout)
    assert card["data"]["source"] == str(home / "tickets.csv")
    assert card["data"]["columns"] == "text: title + message; labels: kind; id: ticket"
    assert {"trained", "command", "versions", "metrics", "settings"} <= set(card)


def test_12_it_works_where_there_is_no_home(home):
    surroundings = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "USER": "nobody"}
    command = [*LONGTAIL, "predict", str(home / "model"), "-"]
    done = subprocess.run(
        command, input="hops malt\n", capture_output=True, text=True, env=surroundings
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["labels"]


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rename", "Refund Request", "Billing Question"],
            "there is a label 'Billing Question' already; to make one label of both, merge them",
        ),
        (
            ["merge", "Refund Request", "Refund Request"],
            "the label 'Refund Request' cannot be merged with itself",
        ),
        (["drop", *KINDS.values()], "a model without any label is of no use; leave at least one"),
        (["drop", "Refnd"], "the model has no label 'Refnd'; did you mean 'Refund Request'?"),
        (["add", "Refund Request"], "there is a label 'Refund Request' already"),
        (["rename", "Refund Request", " "], "a label needs a name. Got a blank one instead."),
    ],
)
def test_changes_of_labels_that_cannot_be(home, arguments, message):
    before = {file: file.read_bytes() for file in (home / "model").iterdir()}
    assert fail("labels", home / "model", *arguments) == f"Error: {message}"
    assert {file: file.read_bytes() for file in (home / "model").iterdir()} == before


def test_a_vocabulary_with_cycles_and_two_concepts_of_one_name(tmp_path):
    turtle = tmp_path / "vocab.ttl"
    concepts = "".join(
        f'ex:{name} a skos:Concept ; skos:prefLabel "{label}"@en ; skos:broader ex:{above} .\n'
        for name, label, above in (("a", "beer", "b"), ("b", "beer", "a"), ("c", "wine", "a"))
    )
    prefixes = "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n@prefix ex: <http://x/> .\n"
    turtle.write_text(prefixes + concepts)
    said = succeed("vocab", "load", turtle, "--out", tmp_path / "v.json").stderr
    assert "1 preferred names in the language 'en' belong to several" in said
    assert "has a cycle:" in said
