"""`longtail vocab`, as a user types it."""

import json

import pytest

from tests.command_line import fail, succeed, write_texts

NAMES = (
    "<http://ex.org/p1>\tbeer\ten\n<http://ex.org/p1>\tolut\tfi\n<http://ex.org/p2>\tbread\ten\n"
)


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "food.tsv"
    path.write_text(NAMES)
    return path


def test_load_writes_one_file_and_says_what_is_in_it(names, tmp_path):
    out = tmp_path / "food.vocab"
    said = succeed("vocab", "load", names, "--out", out).stdout
    assert said.startswith("2 concepts with 3 names (en, fi), 0 broader and 0 related links are in")
    assert len(out.read_text().splitlines()) == 3
    assert "already exists" in fail("vocab", "load", names, "--out", out)
    again = tmp_path / "again.vocab.gz"
    succeed("vocab", "load", out, "--out", again)
    assert again.read_bytes()[:2] == b"\x1f\x8b"


def test_load_says_what_surprises(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\tbass\tde\nb\tbass\tde\n")
    result = succeed("vocab", "load", path, "--out", tmp_path / "x.vocab")
    assert result.stderr.startswith(
        "Note: 1 preferred names in the language 'de' belong to several"
    )


FOOD = (
    "uri,label_en,label_fi\n"
    "http://ex.org/1,beer,olut\nhttp://ex.org/2,bread,leipä\nhttp://ex.org/3,chess,shakki\n"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "food.csv").write_text(FOOD)
    data = write_texts(folder / "train.jsonl", 200, seed=0)
    options = ["--model", "linear", "--vocab", folder / "food.csv", "--out", folder / "model"]
    result = succeed("train", data, *options)
    assert "Note: of 4 labels the vocabulary lacks 1 label ('sailing')." in result.stderr
    return folder


def test_predictions_in_a_language_have_uris(trained, tmp_path):
    data = write_texts(tmp_path / "new.jsonl", 5, seed=3)
    printed = succeed("predict", trained / "model", data, "--language", "fi").stdout
    found = {
        each["label"]: each.get("uri")
        for line in printed.splitlines()
        for each in json.loads(line)["labels"]
    }
    assert found == {
        "olut": "http://ex.org/1",
        "leipä": "http://ex.org/2",
        "shakki": "http://ex.org/3",
        "sailing": None,
    }
    out = tmp_path / "out.csv"
    succeed("predict", trained / "model", data, "-k", "1", "--out", out)
    header, first, *_ = out.read_text().splitlines()
    assert header == "labels,scores,uris"
    assert first.split(",")[0] in ("beer", "bread", "chess", "sailing")
    error = fail("predict", trained / "model", data, "--language", "sv")
    assert error.endswith("in the language 'sv'; there are: en, fi")


def test_documents_may_name_concepts_as_they_like(trained, tmp_path):
    lines = ['{"text": "hops malt", "labels": ["olut"]}', '{"text": "rook", "labels": ["chess"]}']
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(lines) + "\n")
    succeed("evaluate", trained / "model", path, "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["P@1"] == 100


def test_data_info_says_what_the_vocabulary_lacks(trained):
    said = succeed("data", "info", trained / "train.jsonl", "--vocab", trained / "food.csv").stdout
    assert "- Of 4 labels the vocabulary lacks 1 label ('sailing')." in said


def test_languages_need_a_vocabulary(trained, tmp_path):
    data = trained / "train.jsonl"
    error = fail("train", data, "--language", "fi", "--model", "linear", "--out", tmp_path / "m")
    assert "give it with --vocab" in error
    options = ["--language", "sv", "--vocab", trained / "food.csv", "--model", "linear"]
    assert "there are: en, fi" in fail("train", data, *options, "--out", tmp_path / "m")


def test_evaluate_counts_what_is_above_a_true_label(tmp_path):
    vocabulary = tmp_path / "food.vocab"
    concepts = [
        {
            "uri": "http://ex.org/beer",
            "preferred": {"en": "beer"},
            "broader": ["http://ex.org/food"],
        },
        {"uri": "http://ex.org/food", "preferred": {"en": "bread"}},
    ]
    head = {"longtail_vocabulary": 1, "concepts": 2}
    vocabulary.write_text("".join(json.dumps(each) + "\n" for each in (head, *concepts)))
    data = write_texts(tmp_path / "train.jsonl", 200, seed=0)
    out, report = tmp_path / "model", tmp_path / "report.json"
    options = ["--model", "linear", "--valid", "0", "--vocab", vocabulary, "--out", out]
    succeed("train", data, *options)
    test = tmp_path / "test.jsonl"
    test.write_text('{"text": "flour oven crust", "labels": ["beer"]}\n')
    shown = succeed("evaluate", out, test, "-k", "1", "--json", report).stdout
    found = json.loads(report.read_text())
    assert (found["P@1"], found["hP@1"], found["hrecall@1"]) == (0, 50, 50)
    assert ["hP", "50.00"] in [line.split() for line in shown.splitlines()]
