"""The card of a model: what is in it, on disk, after other steps, and when it is a stranger's."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import fail, succeed, write_sparse, write_texts
from planted import planted_texts

import longtail
from longtail import KNN, Linear, ModelFileError, load_model
from longtail.models.card import Card, checksum
from longtail.runtime.store import read_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a model that the command line trained on a file."""
    folder = tmp_path_factory.mktemp("card")
    data = write_texts(folder / "train.jsonl", 200, seed=0)
    arguments = ["train", str(data), "--out", str(folder / "model"), "--model", "linear"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["longtail", *arguments])
        succeed(*arguments)
    return folder / "model"


def test_a_card_says_all_about_training(trained):
    card = json.loads((trained / "card.json").read_text())
    assert card["model"] == "linear"
    assert card["trained"][:2] == "20"
    assert card["command"].startswith("longtail train ")
    assert card["data"]["source"] == str(trained.with_name("train.jsonl"))
    assert (card["data"]["documents"], card["data"]["labels"]) == (200, 4)
    assert len(card["data"]["sha256"]) == 64
    assert (card["settings"]["power"], card["settings"]["tfidf.lowercase"]) == (3.0, True)
    assert card["versions"]["longtail"] == longtail.__version__
    assert card["metrics"]["n_documents"] == 20
    assert card["metrics"]["P@1"] > 90
    assert card["speed"]["documents per second"] > 1
    sizes = [file.stat().st_size for file in trained.iterdir()]
    assert max(sizes) < card["n_bytes"] < sum(sizes)
    assert card["limits"][0] == (
        "It gives none but the 4 labels that its training documents carry."
    )


def test_the_page_says_the_same(trained):
    page = (trained / "card.md").read_text()
    assert page.startswith("# A linear model\n\nIt was trained 20")
    assert "| documents | 200 |" in page
    assert "## Limits\n\n- It gives none but the 4 labels" in page


def test_info_shows_the_card(trained, tmp_path):
    shown = succeed("info", trained).stdout
    assert f"{trained} holds a linear model, trained 20" in shown
    assert "P at 1, 3, 5" in shown
    assert json.loads(succeed("info", trained, "--json", "-").stdout)["model"] == "linear"
    assert fail("info", tmp_path / "gone") == f"Error: {tmp_path / 'gone'}: no such model folder"


def test_a_model_without_a_card_works(trained, tmp_path):
    model = load_model(trained)
    model.save(tmp_path / "model")
    (tmp_path / "model" / "card.json").unlink()
    (tmp_path / "model" / "card.md").unlink()
    other = load_model(tmp_path / "model")
    assert other.predict(["hops malt"]).names == model.predict(["hops malt"]).names
    assert fail("info", tmp_path / "model") == (
        f"Error: {tmp_path / 'model'}: holds a linear model that longtail {longtail.__version__} "
        "saved, but no card.json; saving it again adds one"
    )
    other.save(tmp_path / "model", overwrite=True)
    assert "trained at an un" in succeed("info", tmp_path / "model").stdout


def test_the_same_training_gives_the_same_files_but_for_the_card(tmp_path, monkeypatch):
    data = planted_texts(60)
    Linear().fit(data).save(tmp_path / "one")
    monkeypatch.setattr("longtail.models.card.now", lambda: "2001-01-01 00:00:00")
    Linear().fit(data).save(tmp_path / "other")
    for file in (tmp_path / "one").iterdir():
        same = file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()
        assert same == (not file.name.startswith("card."))


def test_a_loaded_model_keeps_its_card_and_adds_to_its_history(tmp_path):
    data = planted_texts(60)
    KNN().fit(data).save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    model.partial_fit(data.take(np.arange(3)))
    model.calibrate(data)
    model.save(tmp_path / "model", overwrite=True)
    card = load_model(tmp_path / "model").card_
    assert card.data["sha256"] == checksum(data)
    assert [line.split(": ")[1] for line in card.history] == [
        "3 documents added",
        "calibrated on 60 documents",
    ]
    assert "Its scores are probabilities, learned from 60 documents" in card.limits[-1]


def test_the_checksum_is_that_of_documents_and_labels():
    data = planted_texts(20)
    same = longtail.Dataset(data.Y.copy(), list(data.label_names), texts=list(data.texts))
    assert checksum(same) == checksum(data)
    assert checksum(data.take(np.arange(19))) != checksum(data)
    other = replace(data, texts=[*data.texts[:-1], data.texts[-1] + " "])
    assert checksum(other) != checksum(data)
    names = ["renamed", *data.label_names[1:]]
    assert checksum(replace(data, label_names=names)) != checksum(data)


def test_models_show_where_they_come_from(trained):
    assert repr(Linear(C=2.0)) == "Linear(C=2.0)"
    model = load_model(trained)
    first, second, third = repr(model).splitlines()
    assert first.startswith("Linear(tfidf=Tfidf(")
    assert second.startswith("  4 labels, trained 20")
    assert "on 200 documents from " in second
    assert third.startswith("  on held-out documents: P@1 ")
    assert '<td style="text-align: left">max_leaf</td>' in model._repr_html_()
    assert "not trained yet" in Linear()._repr_html_()


def test_a_model_of_rows_says_what_it_reads(tmp_path):
    data = write_sparse(tmp_path / "train.txt", 60, seed=0)
    succeed("train", data, "--out", tmp_path / "model", "--model", "linear", "--valid", "0")
    limits = json.loads((tmp_path / "model" / "card.json").read_text())["limits"]
    assert "It reads rows of 15 features, made as in training." in limits
    assert "Its scores order labels; they are no probabilities." in limits


# -- a stranger's ---------------------------------------------------------------------------------

GOOD = {"model": "linear", "trained": "2026-01-01 00:00:00"}


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ({"model": "linear"}, "card.json has no trained"),
        ({**GOOD, "model": 7}, "model of card.json is not what a card holds"),
        ({**GOOD, "metrics": {"P@x": 1.0}}, "metrics of card.json is not what a card holds"),
        ({**GOOD, "metrics": {"P@" + "9" * 5000: 1.0}}, "metrics of card.json is not what"),
        ({**GOOD, "metrics": {"P@1": "high"}}, "metrics of card.json is not what a card holds"),
        ({**GOOD, "n_bytes": float("nan")}, "n_bytes of card.json is not what a card holds"),
        ({**GOOD, "data": {"documents": {}}}, "data of card.json is not what a card holds"),
        ({**GOOD, "data": []}, "data of card.json is not what a card holds"),
        ({**GOOD, "limits": "none"}, "limits of card.json is not what a card holds"),
        ({**GOOD, "notes": ["x" * 20_000]}, "notes of card.json is not what a card holds"),
        ({**GOOD, "mod\x1bel": 1}, r"card.json must not have mod\\x1bel"),
    ],
)
def test_a_card_that_is_none_is_refused(trained, tmp_path, held, problem):
    load_model(trained).save(tmp_path / "model")
    (tmp_path / "model" / "card.json").write_text(json.dumps(held))
    with pytest.raises(ModelFileError, match=problem):
        load_model(tmp_path / "model")
    assert problem.replace("\\\\", "\\") in fail("info", tmp_path / "model")


def test_a_card_that_is_no_json_is_refused(trained, tmp_path):
    load_model(trained).save(tmp_path / "model")
    (tmp_path / "model" / "card.json").write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match=r"card\.json: is not readable as JSON"):
        read_folder(tmp_path / "model")
    (tmp_path / "model" / "card.json").write_bytes(b" " * (1 << 21))
    with pytest.raises(ModelFileError, match="is larger than any card can be"):
        read_folder(tmp_path / "model")


def test_what_a_card_holds_is_shown_as_text():
    card = Card("<b>", "2026", data={"source": "a|b\n# c"}, notes=["[x](y)\x1b"])
    page = card.to_page()
    assert page.startswith("# A \\<b\\> model")
    assert "| source | a\\|b\\\\n# c |" in page
    assert "- \\[x\\](y)\\\\x1b" in page
