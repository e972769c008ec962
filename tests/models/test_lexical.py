"""Lexical: names become stems, matches are described, and what was right is remembered."""

import numpy as np
import pytest
import scipy.sparse as sp

from longtail import load_model
from longtail.data import Dataset
from longtail.errors import DataError, ModelFileError
from longtail.models.fusion.candidates import ask
from longtail.models.lexical.matching import (
    N_INPUTS,
    PRIORS,
    Counts,
    count_held,
    count_matches,
    describe_matches,
    fit_logistic,
)
from longtail.models.lexical.model import Lexical
from longtail.models.lexical.names import (
    LEAST_COVERAGE,
    Reader,
    find_forms,
    read_other_names,
    spell,
    stem,
    weigh_names,
)
from longtail.progress import Progress
from longtail.runtime.store import write_folder

COVERAGE, PHRASE, TIMES, FIRST, WITHIN = 0, 1, 2, 3, 6  # inputs


def dataset(texts, label_lists, names):
    """Return texts with labels by name."""
    Y = np.zeros((len(texts), len(names)), np.float32)
    for row, labels in enumerate(label_lists):
        Y[row, [names.index(label) for label in labels]] = 1
    return Dataset(Y=sp.csr_matrix(Y), label_names=names, texts=texts)


class Said(Progress):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("farming", "farmers", "farm"),
        ("library", "libraries"),
        ("city", "cities"),
        ("box", "boxes"),
        ("match", "matches"),
        ("cat", "cats"),
        ("history", "historical"),
        ("study", "studies"),
    ],
)
def test_forms_of_a_word_have_one_stem(words):
    assert len({stem(word) for word in words}) == 1


@pytest.mark.parametrize("word", ["gas", "bus", "c++", "c#", "is", "käsi", "2026", ""])
def test_short_words_stay_as_they_are(word):
    assert stem(word) == word


def test_a_name_has_shorter_forms():
    assert find_forms("bass (fish)") == ["bass (fish)", "bass"]
    assert find_forms("implemented-in::python") == ["implemented-in::python", "python"]
    assert find_forms("beer") == ["beer"]


def test_names_are_spelled_once_in_the_order_of_labels():
    stems, spelling = spell(["red wine", "wine", "wine!", "?"], [(1, "Wines"), (0, "claret")])
    names = [
        [stems[i] for i in spelling.stems[a:b]]
        for a, b in zip(spelling.start[:-1], spelling.start[1:], strict=True)
    ]
    assert list(zip(spelling.labels.tolist(), names, strict=True)) == [
        (0, ["claret"]),
        (0, ["red", "wine"]),
        (1, ["wine"]),
        (2, ["wine"]),
    ]


def test_a_name_stands_at_the_rarest_stems_without_which_too_little_is_left():
    stems, spelling = spell(["history of beer"], [])
    held = np.array([{"hist": 50, "of": 90, "beer": 1}[each] for each in stems])
    names = weigh_names(spelling, held, 100)
    at = {
        stems[i]: names.anchors[names.anchor_start[i] : names.anchor_start[i + 1]].tolist()
        for i in range(len(stems))
    }
    assert at == {"hist": [], "of": [], "beer": [0]}
    assert names.weights.sum() == pytest.approx(1)
    light = [names.weights[i] for i, each in enumerate(stems) if each != "beer"]
    assert sum(light) < LEAST_COVERAGE


def test_other_names_are_read(tmp_path):
    path = tmp_path / "names.tsv"
    path.write_text("beer\tale\n\nwine\tclaret\r\nother\tthing\n", encoding="utf-8")
    assert read_other_names(path, ["wine", "beer"]) == [(1, "ale"), (0, "claret")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"beer\tale\nwine claret\n", "line 2: a label, a tab and another name of it are expected"),
        (b"bear\tale\n", "none of its labels is one of the 2 labels of the data"),
        (b"\n \n", "there is no line with another name of a label in it"),
        (b"\xff\xfe\xfa", "it is not UTF-8 text"),
        (b"\x1f\x8b broken", "other names of labels cannot be read"),
    ],
)
def test_a_file_of_other_names_that_is_none(tmp_path, content, message):
    path = tmp_path / "names.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_other_names(path, ["wine", "beer"])


def test_a_file_of_other_names_that_is_absent(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        Lexical(other_names=str(tmp_path / "none.tsv")).fit(["some ale"], [["beer"]])


# -- matching ---------------------------------------------------------------------------------


def describe(text, names, others=()):
    """Return the inputs of each match in the last of some texts, by name of the label."""
    texts = ["nothing of that kind", *others, text]
    stems, spelling = spell(names, [])
    words = Reader.of(stems, 1000).read(texts)
    known = weigh_names(spelling, count_held(words, len(stems)), len(texts))
    no_labels = np.zeros(len(texts) + 1, np.int64), np.empty(0, np.int32)
    everything = np.arange(len(texts))
    counts, _ = count_matches(words, everything, no_labels, known, len(names))
    last = everything[-1:]
    rows, complete, _ = describe_matches(words, last, no_labels, known, counts, len(texts))
    _, n_matches = count_matches(words, last, no_labels, known, len(names))
    assert n_matches == len(rows)
    return rows, complete


def test_a_complete_name_is_told_from_a_part_of_it():
    rows, complete = describe("Red and white wines", ["red wine"])
    assert complete.tolist() == [True]
    assert rows[0, COVERAGE] == pytest.approx(1)
    assert rows[0, PHRASE] == 0
    rows, complete = describe("old red wines, red wine", ["red wine"])
    assert rows[0, PHRASE] == 1
    assert rows[0, TIMES] == pytest.approx(np.log(2))
    assert rows[0, FIRST] == pytest.approx(np.log(2))
    rows, complete = describe("a red apple", ["red wine"], ["wine", "more wine"])
    assert complete.tolist() == [False]
    assert LEAST_COVERAGE <= rows[0, COVERAGE] < 1


def test_a_name_within_a_longer_one_is_told():
    rows, _ = describe("energy, renewable energy", ["energy", "renewable energy"])
    assert rows[:, WITHIN].tolist() == [1, 0]
    rows, _ = describe("energy", ["energy"])
    assert rows[0, WITHIN] == 0


def test_counts_are_those_of_a_slow_recount():
    texts = ["red wine", "wine and beer", "beer", "white wine, red", "nothing"]
    labels = [[0], [1, 2], [], [0, 1], [2]]
    data = dataset(
        texts,
        [[("red wine", "wine", "beer")[i] for i in row] for row in labels],
        ["red wine", "wine", "beer"],
    )
    model = Lexical().fit(data)
    stems = list(model.reader_.numbers)
    held = dict(zip(stems, model.counts_.held.tolist(), strict=True))
    assert held == {stem("red"): 2, stem("wine"): 3, stem("beer"): 2}
    assert model.counts_.found.tolist() == [2, 3, 2]
    assert model.counts_.right.tolist() == [2, 2, 1]
    assert model.counts_.word_right.tolist() == [2, 2, 2, 1]
    assert model.counts_.labels.tolist() == [2, 2, 2]


def test_counts_of_folds_add_up():
    some = Counts(*(np.array([value]) for value in (5, 4, 3, 2, 1)))
    more = Counts(*(np.array([1]) for _ in range(5)))
    assert Counts.add([some, more]).without(more) == some


def test_logistic_regression_finds_the_minimum():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, N_INPUTS)).astype(np.float32)
    true = rng.standard_normal(N_INPUTS)
    right = rng.random(2000) < 1 / (1 + np.exp(-(rows @ true - 1)))
    weights = fit_logistic(rows, right, PRIORS[1])
    wrong = 1 / (1 + np.exp(-(rows.astype(float) @ weights[:-1] + weights[-1]))) - right
    slope = np.append(wrong @ rows + weights[:-1], wrong.sum())
    assert np.abs(slope).max() < 0.05
    assert np.corrcoef(weights[:-1], true)[0, 1] > 0.99


def test_without_a_match_to_learn_from_the_prior_stays():
    weights = fit_logistic(np.empty((0, N_INPUTS), np.float32), np.empty(0, bool), 0.25)
    assert not weights[:-1].any()
    assert 1 / (1 + np.exp(-weights[-1])) == pytest.approx(0.25)


# -- the model --------------------------------------------------------------------------------

DRINKS = dataset(
    ["brewing a stout", "a stout in winter", "port with cheese", "old port", "the best of all"] * 8,
    [["stout"], ["stout"], ["port"], ["port"], ["best"]] * 8,
    ["best", "cheese", "port", "stout", "vin jaune"],
)


def test_a_label_that_no_document_carries_is_found():
    model = Lexical().fit(DRINKS)
    top = model.predict(["what to eat with vins jaunes"], k=2)
    assert model.label_names_[top.labels[0, 0]] == "vin jaune"
    assert top.scores[0, 0] > 0
    assert top.scores[0, 1] == 0


def test_a_name_that_was_never_right_comes_behind_one_that_was():
    model = Lexical().fit(DRINKS)
    top = model.predict(["port and cheese"], k=2)
    assert [model.label_names_[label] for label in top.labels[0]] == ["port", "cheese"]
    assert top.scores[0, 0] > 2 * top.scores[0, 1]


def test_other_names_are_found(tmp_path):
    path = tmp_path / "names.tsv"
    path.write_text("stout\tdark ale\n", encoding="utf-8")
    model = Lexical(other_names=str(path)).fit(DRINKS)
    top = model.predict(["a strong, dark ale"], k=1)
    assert model.label_names_[top.labels[0, 0]] == "stout"


def test_it_says_how_many_names_stand_in_the_texts():
    said = Said()
    Lexical().fit(DRINKS, progress=said)
    assert (
        said.lines[-1] == "Names of 4 of 5 labels stand in the texts; 83% of such matches are right"
    )
    Lexical().fit(["one text", "two texts"], [["a1"], ["b2"]], progress=said)
    assert "no label's name stands in any of the texts" in said.lines[-1]


def test_labels_without_any_word_in_their_names_are_ranked_by_frequency(tmp_path):
    model = Lexical().fit(["one text", "two texts", "three"], [["?"], ["!"], ["!"]])
    top = model.predict(["a text"], k=2)
    assert [model.label_names_[label] for label in top.labels[0]] == ["!", "?"]
    np.testing.assert_allclose(top.scores[0], [2 / 3, 1 / 3], rtol=1e-6)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model").predict(["a text"], k=2)
    assert np.array_equal(again.scores, top.scores)


def test_an_explanation_shows_the_words_of_the_name():
    model = Lexical().fit(DRINKS)
    found = model.explain("Stouts and port", "stout")
    assert [(term.name, term.weight, term.spans) for term in found.terms] == [
        ("stouts", 1.0, ((0, 6),))
    ]
    assert {term.name for term in model.explain("Stouts and port").terms} == {"stouts", "port"}
    assert not model.explain("nothing known").terms


@pytest.mark.parametrize(
    ("array", "change", "message"),
    [
        ("names.labels", lambda a: a[::-1].copy(), "names.labels must hold rising numbers"),
        ("names.stems", lambda a: a + 100, "names.stems must hold"),
        ("counts.right", lambda a: a + 20, "counts.right must be at most counts.found"),
        ("counts.word_right", lambda a: a + 20, "counts.word_right must be at most counts.held"),
        ("weights", lambda a: np.full_like(a, np.nan), "weights must hold numbers"),
    ],
)
def test_crafted_arrays_are_refused(tmp_path, array, change, message):
    files = Lexical().fit(DRINKS).to_files()
    files.arrays[array] = change(files.arrays[array])
    write_folder(tmp_path / "model", files)
    with pytest.raises(ModelFileError, match=message):
        load_model(tmp_path / "model")


def test_a_fusion_reads_texts_once_to_propose_and_to_score(monkeypatch):
    names = ["cat", "dog", "wild horse", "none"]
    texts = ["a cat sat", "dogs and cats", "a wild horse ran", "nothing at all", "horses"] * 4
    labels = [["cat"], ["dog", "cat"], ["wild horse"], ["none"], ["wild horse"]] * 4
    model = Lexical().fit(dataset(texts, labels, names))
    reads, read = [], Reader.read
    monkeypatch.setattr(Reader, "read", lambda *given: reads.append(given) or read(*given))
    row = sp.csr_matrix((5, 1), dtype=np.float32)
    said = ask({"lexical": model}, {"lexical": 2}, texts[:5], row, 4, k=3)
    assert len(reads) == 1
    for i, text in enumerate(texts[:5]):
        asked = np.where(said.labels[i] >= 0, said.labels[i], 0)[None, :]
        expected = np.where(said.labels[i] >= 0, model.score([text], asked)[0], 0)
        np.testing.assert_array_equal(said.scores[0, i], expected)
