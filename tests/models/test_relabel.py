"""Labels that live: what a saved model says and does once people changed its labels."""

from dataclasses import replace

import numpy as np
import pytest
from planted import planted_texts

from longtail import evaluate, load_model
from longtail.data import as_dataset
from longtail.errors import ModelFileError, ParameterError
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Concept, Vocabulary
from longtail.models import Fusion, Lexical, Linear
from longtail.models.relabel import (
    add_label,
    drop_labels,
    list_labels,
    merge_labels,
    rename_label,
    search_labels,
)

ANIMALS = ["cat", "dog", "horse", "goose", "shark"]


def animals(n=200, seed=0):
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(n):
        own = rng.choice(ANIMALS, size=2, replace=False).tolist()
        texts.append(f"about the {own[0]} and a {own[1]} in town")
        labels.append(own)
    return as_dataset(texts, labels)


@pytest.fixture
def lexical():
    return Lexical().fit(animals())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: rename_label(m, "cat", "dog"), "there is a label 'dog' already; to make one"),
        (lambda m: rename_label(m, "catt", "x"), "has no label 'catt'; did you mean 'cat'?"),
        (lambda m: rename_label(m, "zebra", "x"), "the model has no label 'zebra'$"),
        (lambda m: rename_label(m, "cat", " "), "needs a name"),
        (lambda m: merge_labels(m, ["cat"], "cat"), "'cat' cannot be merged with itself"),
        (lambda m: drop_labels(m, ANIMALS), "leave at least one"),
        (lambda m: add_label(m, "cat"), "there is a label 'cat' already$"),
    ],
)
def test_what_cannot_be(lexical, change, message):
    with pytest.raises(ParameterError, match=message):
        change(lexical)
    assert lexical.label_state_.targets is None
    assert sorted(lexical.label_names_) == sorted(ANIMALS)


def test_what_became_of_a_label_is_said(lexical):
    merge_labels(lexical, ["cat"], "dog")
    drop_labels(lexical, ["goose"])
    with pytest.raises(ParameterError, match="the label 'cat' became part of 'dog'"):
        drop_labels(lexical, ["cat"])
    with pytest.raises(ParameterError, match="'goose' was dropped; longtail labels DIR add brings"):
        merge_labels(lexical, ["goose"], "dog")
    with pytest.raises(ParameterError, match="the name 'cat' is taken by a label that became part"):
        rename_label(lexical, "dog", "cat")
    assert "'cat' became part of the label 'dog'" in "".join(lexical.card_.history)


def test_a_dropped_label_comes_back(lexical):
    drop_labels(lexical, ["cat"])
    assert "cat" not in {row["label"] for row in list_labels(lexical)}
    assert "is given again" in add_label(lexical, "cat")
    assert lexical.predict(["the cat"], 1).names == [["cat"]]


def test_a_dropped_label_comes_back_with_what_was_merged_into_it(lexical):
    merge_labels(lexical, ["cat"], "dog")
    before = list_labels(lexical)
    drop_labels(lexical, ["dog"])
    with pytest.raises(ParameterError, match="the label 'cat' was dropped"):
        drop_labels(lexical, ["cat"])
    assert "is given again" in add_label(lexical, "dog")
    assert list_labels(lexical) == before
    assert lexical.predict(["the cat"], 1).names == [["dog"]]


def test_counts_add_up_and_documents_with_old_names_are_read(lexical):
    before = {row["label"]: row["documents"] for row in list_labels(lexical)}
    merge_labels(lexical, ["cat", "horse"], "dog")
    after = {row["label"]: row["documents"] for row in list_labels(lexical)}
    assert after["dog"] == min(200, before["cat"] + before["horse"] + before["dog"])
    test = lexical.read_labels(as_dataset(["the cat"], [["cat"]]))
    assert evaluate(lexical.predict(test, 1), test, k=1)["P@1"] == 100


def test_an_update_with_the_old_name_of_a_label_makes_no_second_one(tmp_path):
    model = Lexical().fit(animals())
    rename_label(model, "cat", "tiger")
    rename_label(model, "tiger", "lion")
    model.save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.read_labels(as_dataset(["a"], [["cat", "tiger"]])).label_names == ["lion"]
    model.partial_fit(animals(40, seed=1))
    assert sorted(model.label_names_) == sorted({*ANIMALS, "lion"} - {"cat"})
    model.save(tmp_path / "again")
    assert load_model(tmp_path / "again").label_state_.old_names == model.label_state_.old_names


@pytest.mark.parametrize("renamed", [[99], [-1], [0, 1]])
def test_old_names_of_labels_that_are_not_there_are_refused(lexical, renamed):
    rename_label(lexical, "cat", "lion")
    files = lexical.to_files()
    files.arrays["renamed_labels"] = np.array(renamed, np.int32)
    with pytest.raises(ValueError, match="renamed_labels"):
        lexical.check_files(files)


def test_a_label_without_documents_is_found_by_its_names(lexical, tmp_path):
    said = add_label(lexical, "zebra", ["striped horse"])
    assert said.startswith("the label 'zebra' is found by its names")
    for text in ("the zebra ran", "a striped horse ran"):
        assert "zebra" in lexical.predict([text], 2).names[0]
    lexical.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.predict(["the zebra ran"], 1).names == [["zebra"]]


def test_the_same_as_a_member_of_a_fusion(tmp_path):
    model = Fusion(members="linear,lexical").fit(animals())
    add_label(model, "zebra")
    rename_label(model, "cat", "tiger")
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert "zebra" in again.predict(["the zebra and the dog"], 3).names[0]
    assert "tiger" in again.predict(["the cat and the dog"], 2).names[0]
    assert "tiger" in again.predict(["the tiger and the dog"], 3).names[0]  # the new name as well


def test_all_members_of_a_fusion_count_labels_alike_after_an_update():
    """Once labels were counted otherwise by those members that did not know an added one."""
    model = Fusion(members="knn,lexical").fit(animals())
    add_label(model, "zebra")
    texts = [f"the badger ran by the hill {i}" for i in range(30)]
    model.partial_fit(texts, [["badger"]] * 30)
    assert [list(each.label_names_) for each in model.members_.values()] == [
        list(model.label_names_)
    ] * 2
    knn = model.members_["knn"]
    asked = np.array([[list(model.label_names_).index(each) for each in ("zebra", "badger")]])
    zebra, badger = knn.score(model.features_.transform(["the badger ran"]), asked)[0]
    assert badger > 0.5
    assert zebra == 0
    assert model.predict(["the badger ran"], 1).names == [["badger"]]


def test_other_models_say_who_can_add():
    model = Linear().fit(planted_texts())
    with pytest.raises(ParameterError, match="lexical can, by its name, alone or as a member"):
        add_label(model, "zebra")


def test_how_well_that_works_is_measured_on_hidden_labels():
    rng = np.random.default_rng(0)
    names = [f"thing{i}" for i in range(100)]
    own = [rng.choice(names, size=2, replace=False).tolist() for _ in range(500)]
    model = Lexical().fit(as_dataset([f"a {a} or a {b}" for a, b in own], own))
    assert model.unseen_.n_labels == 5
    assert model.unseen_.share > 0.9
    assert "of 5 labels that training did not show to lexical" in model.say_unseen()


def test_updates_keep_what_became_of_labels():
    data = planted_texts()
    model = Linear().fit(data)
    merge_labels(model, ["label 1"], "label 2")
    drop_labels(model, ["label 3"])
    new = as_dataset(
        ["word1 word2 word50"] * 3, [["label 1"], ["label 3", "brand new"], ["label 4"]]
    )
    model.partial_fit(new)
    assert model.label_names_[-1] == "brand new"
    found = {name for row in model.predict(data, 12).names for name in row}
    assert found.isdisjoint({"label 1", "label 3"})


def test_many_dropped_labels_leave_as_many_as_are_asked_for():
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(120)]
    data = as_dataset(
        [f"w{i} w{i + 1}" for i in range(240)], [[names[i % 120]] for i in range(240)]
    )
    model = Linear().fit(data)
    drop_labels(model, rng.permutation(names)[:110].tolist())
    top = model.predict(data, 10)
    assert all(len(set(row)) == 10 for row in top.names)
    assert model.predict(data, 50).k <= 120


def test_excluded_pairs_stay_excluded_after_a_merge():
    data = planted_texts(n=100)
    model = Linear().fit(data)
    merge_labels(model, ["label 1"], "label 2")
    exclude = data.Y.copy()  # all that is true
    top = model.predict(replace(data, exclude=exclude), 12)
    for row, own in zip(top.labels, data.Y, strict=True):
        assert set(row.tolist()).isdisjoint(own.indices.tolist())


def test_labels_are_found_by_other_names_and_uris():
    data = animals()
    model = Lexical().fit(data)
    model.label_state_ = LabelState.of(
        Vocabulary.build([Concept("http://x/cat", {"en": "cat", "fi": "kissa"})]), data
    )
    assert search_labels(model, "kiss")[0]["label"] == "cat"
    assert search_labels(model, "kisa", language="fi")[0] == {
        "label": "kissa",
        "documents": int(model.training_counts_.label_counts[model.label_names_.index("cat")]),
        "uri": "http://x/cat",
    }
    rename_label(model, "http://x/cat", "Katze")
    assert "Katze" in model.predict(["the cat"], 1).names[0]
    assert model.read_labels(as_dataset(["a"], [["kissa"]])).label_names == ["Katze"]


def test_a_renamed_label_without_a_name_in_a_language_has_its_new_one():
    data = animals()
    model = Lexical().fit(data)
    model.label_state_ = LabelState.of(
        Vocabulary.build([Concept("http://x/cat", {"en": "cat", "fi": "kissa"})]), data
    )
    assert {"kissa", "dog"} <= set(model.names_in("fi"))
    rename_label(model, "dog", "hound")
    assert {"kissa", "hound"} <= set(model.names_in("fi"))
    assert "dog" not in model.names_in("fi")


def test_a_fusion_keeps_uris_once():
    data = replace(animals(), label_uris={"cat": "http://x/cat"})
    model = Fusion(members="linear,lexical").fit(data)
    assert model.predict(["the cat"], 5).to_list()[0][0]["uri"] == "http://x/cat"
    assert [name for name in model.to_files().texts if "concepts" in name] == [
        f"concepts.{part}" for part in ("uris", "languages", "names")
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("label_targets", [1, 2, 2, 3, 4], "labels that are given as themselves"),
        ("label_targets", [0, 1, 2, 3, 99], "label_targets must hold numbers of labels, or -1"),
        ("label_concepts", [0, 1, 2, 3, 4], "concepts.uris is missing"),
        ("concepts.broader", [[0, 1]], "there is no array 'concepts.broader'"),
    ],
)
def test_a_folder_with_labels_that_make_no_sense_is_refused(lexical, name, value, message):
    files = lexical.to_files()
    files.arrays[name] = np.array(value, np.int32)
    with pytest.raises(ModelFileError, match=message):
        Lexical.from_files(files, "crafted")


def test_labels_that_are_uris_have_themselves_as_uris(tmp_path):
    uris = {f"http://x/{name}": f"http://x/{name}" for name in ANIMALS}
    data = animals()
    data = replace(data, label_names=[f"http://x/{n}" for n in data.label_names], label_uris=uris)
    Linear().fit(data).save(tmp_path / "model")
    found = load_model(tmp_path / "model").predict(["the cat"], 1).to_list()[0][0]
    assert found["label"] == found["uri"]
