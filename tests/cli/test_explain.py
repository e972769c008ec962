"""`longtail explain`, end to end."""

import json

import pytest
from planted import planted_dataset, planted_texts
from typer.testing import CliRunner

from longtail.cli import app
from longtail.models import Lexical, Linear

pytest.importorskip("torch")

from longtail.models import AttentionXML, GLaS, RankAE


def call(*args, **options):
    return CliRunner().invoke(app, ["explain", *map(str, args)], **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "rank-ae"
    RankAE(dim=16, word_dim=16, epochs=15, device="cpu").fit(planted_texts()).save(path)
    return path


def test_labels_text_and_words(model):
    result = call(model, "word0 and word1, word50")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Labels: label 0 ")
    assert lines[1].strip() == "word0 and word1, word50"
    assert "weight" in lines[3]
    assert {line.split()[0] for line in lines[5:] if line} == {"word0", "word1", "word50", "word…"}


def test_for_one_label(model):
    result = call(model, "word0 word1 word50", "--label", "label 0")
    assert result.exit_code == 0, result.stderr
    assert "for label 0" in result.stdout


def test_attention_speaks_of_looking_and_losing(tmp_path):
    sizes = {"hidden": 8, "head": 8, "word_dim": 8, "epochs": 1, "device": "cpu"}
    AttentionXML(**sizes).fit(planted_texts(60)).save(tmp_path / "model")
    page = tmp_path / "page.html"
    result = call(tmp_path / "model", "word0 word1", "--label", "label 0", "--html", page)
    assert result.exit_code == 0, result.stderr
    assert "looked at for label 0" in result.stdout
    assert "lost without it" in result.stdout
    assert "against" not in result.stdout + page.read_text()


def test_a_page_and_the_data(model, tmp_path):
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    result = call(model, "word0 <b> word1", "--html", page, "--json", data)
    assert result.exit_code == 0, result.stderr
    assert "&lt;b&gt;" in page.read_text()
    assert json.loads(data.read_text())["terms"][0]["term"] in ("word0", "word1")
    again = call(model, "word0", "--html", page)
    assert again.exit_code == 2
    assert "already exists; choose another --html, or add --overwrite" in again.stderr
    assert call(model, "word0", "--html", page, "--overwrite").exit_code == 0


def test_json_on_stdout_is_nothing_but_json(model):
    result = call(model, "-", "--json", "-", input="word0 word1\n")
    assert json.loads(result.stdout)["text"] == "word0 word1\n"


def test_control_characters_do_not_reach_the_terminal(model):
    result = call(model, "word0 \x1b[31mword1\x07")
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing known"], "the model knows no word of this text, so there is nothing"),
        ([""], "the model knows no word of this text"),
        (["word0", "--label", "lable 1"], "the model knows no label 'lable 1'; did you mean"),
        (["word0", "--html", "."], ". is a folder; --html must be a file"),
    ],
)
def test_what_cannot_be_explained(model, args, message):
    result = call(model, *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr


def test_a_label_that_no_word_speaks_for(tmp_path):
    Lexical().fit(["a cat ran", "a dog ran"], [["cat"], ["dog"]]).save(tmp_path / "m")
    result = call(tmp_path / "m", "the cat", "--label", "dog")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: the model knows no word of this text that speaks for or against 'dog', so there is "
        "nothing to explain\n"
    )


def test_a_model_of_rows_reads_no_text(tmp_path):
    RankAE(dim=8, word_dim=8, epochs=1, device="cpu").fit(planted_dataset()).save(tmp_path / "m")
    result = call(tmp_path / "m", "word0")
    assert result.exit_code == 2
    assert "was trained on feature rows with 56 columns and cannot read texts" in result.stderr


def test_a_model_of_embeddings_leaves_words_out(tmp_path):
    GLaS(dim=32, epochs=20, device="cpu").fit(planted_texts()).save(tmp_path / "m")
    result = call(tmp_path / "m", "word0 word1 word50", "--label", "label 0", "--json", "-")
    weights = {term["term"]: term["weight"] for term in json.loads(result.stdout)["terms"]}
    assert max(weights, key=weights.get) in {"word0", "word1", "word0 word1"}
    assert weights["word50"] < 0.1 * max(weights.values())


def test_a_model_that_cannot_explain_itself(tmp_path, monkeypatch):
    GLaS(dim=8, epochs=1, device="cpu").fit(planted_texts()).save(tmp_path / "m")
    monkeypatch.setattr(GLaS, "can_explain", False)
    result = call(tmp_path / "m", "word0")
    assert result.exit_code == 2
    assert "glas cannot explain its predictions; models that can: " in result.stderr
    assert "rank-ae" in result.stderr


def test_linear_says_why_a_label_was_not_given(tmp_path):
    Linear().fit(planted_texts()).save(tmp_path / "m")
    given = call(tmp_path / "m", "word0 word1", "--label", "label 0", "--json", "-")
    notes = json.loads(given.stdout)["notes"]
    assert "rank 1;" in notes[0]
    other = call(tmp_path / "m", "word0 word1", "--label", "label 3", "--html", tmp_path / "p.html")
    (line,) = [line for line in other.stdout.splitlines() if line.startswith("Score 0.0")]
    assert line in (tmp_path / "p.html").read_text()
    assert "word0" in call(tmp_path / "m", "word0 word1").stdout


def test_a_folder_that_is_no_model(tmp_path):
    assert call(tmp_path, "word0").exit_code == 2
