"""What every model promises, tried on each of them with small planted data.

A new model joins by being registered, with an entry in QUICK if its defaults do not suit data
as small as this. LONGTAIL_TEST_DEVICE=cuda tries the same on a GPU.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_rows, planted_texts

from longtail import evaluate, load_model, train
from longtail.errors import (
    DataError,
    MemoryPlanError,
    ModelFileError,
    NotFittedError,
    ParameterError,
    TrainingError,
)
from longtail.models import get_model_class, model_names
from longtail.models.relabel import drop_labels, merge_labels, rename_label
from longtail.progress import SILENT
from longtail.runtime.parallel import set_threads
from longtail.text.tfidf import Tfidf
from longtail.topk import NO_LABEL, TopK

DEVICE = os.environ.get("LONGTAIL_TEST_DEVICE", "cpu")
# The planted data has few labels, so a model that has a tree must be told to build one.
QUICK: dict[str, dict[str, object]] = {
    "linear": {"flat": 0, "branching": 3, "max_leaf": 4},
    "glas": {"dim": 32, "epochs": 15, "learning_rate": 0.01, "device": DEVICE},
    "mnn": {"dim": 32, "learning_rate": 0.01, "device": DEVICE},
    "dxml": {"dim": 32, "hidden": 64, "walks": 50, "learning_rate": 0.01, "device": DEVICE},
    "rank-ae": {"dim": 32, "word_dim": 32, "epochs": 15, "device": DEVICE},
    "attention-xml": {
        "hidden": 16,
        "head": 16,
        "word_dim": 16,
        "dropout": 0.2,
        "levels": 1,
        "branching": 4,
        "epochs": 15,
        "batch_size": 16,
        "learning_rate": 0.02,
        "device": DEVICE,
    },
    "lexical": {"other_names": str(Path(__file__).with_name("planted_names.tsv"))},
    "fusion": {"members": "linear,knn"},
}

# For promises that do not depend on how much a model has learned.
BRIEF = {"epochs": 2}
# Over the sizes of a preset, whose other parameters stay.
TINY = {"dim": 16, "hidden": 8, "head": 8, "word_dim": 8, "walks": 5, "epochs": 1, "levels": 0}
# Presets for data sets of a paper: too few steps, or too many levels, for what is planted.
FOR_LARGE_SETS = {"amazoncat-13k", "amazon-670k", "wiki-500k", "amazon-3m"}

WITHOUT_CHANCE = {"knn", "lexical"}  # few documents leave nothing to a seed
PREDICTS_THERE = {"attention-xml"} if DEVICE == "cuda" else set()  # where sums have no fixed order
MODELS = [
    name for name in model_names() if find_spec("torch") or not get_model_class(name).needs_torch
]

# With --dist loadgroup a worker takes all tests of a model, which share what is trained.
pytestmark = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS]
)


def make(name, **parameters):
    return get_model_class(name)(**{**QUICK.get(name, {}), **parameters})


def make_brief(name, **parameters):
    """Return a model that is trained for a moment only."""
    brief = BRIEF if get_model_class(name).has_parameter("epochs") else {}
    return make(name, **brief, **parameters)


@cache
def train_briefly(name):
    """Return a model that was trained for a moment; tests change copies of it."""
    return make_brief(name).fit(planted(name))


def make_small(name, **parameters):
    """Return the model for fewer labels than a tree can have."""
    levels = {"levels": 0} if name == "attention-xml" else {}
    return make_brief(name, **levels, **parameters)


def assert_same(name, one, other):
    """Compare labels and scores bit by bit; only the scores, roughly, if a GPU added them up."""
    if name in PREDICTS_THERE:
        np.testing.assert_allclose(one.scores, other.scores, atol=0.05)
        return
    assert np.array_equal(one.scores, other.scores)
    assert np.array_equal(one.labels, other.labels)


def reads(name, document_type):
    return document_type in get_model_class(name).reads


def planted(name, **parameters):
    """Return planted data of the type that the model reads, rows if it can."""
    return (planted_dataset if reads(name, "rows") else planted_texts)(**parameters)


def documents(name, X):
    """Return the rows X; for a model of texts, a text with a word for each cell."""
    if reads(name, "rows"):
        return X
    return [" ".join(f"word{feature}" for feature in X[i].indices) for i in range(X.shape[0])]


class Fitted(dict):
    """Models by name and document type, trained on planted data when first asked for."""

    def __missing__(self, key):
        name, document_type = key
        if document_type == "any":
            return self[name, "rows" if reads(name, "rows") else "texts"]
        data = planted_dataset() if document_type == "rows" else planted_texts()
        return self.setdefault(key, make(name).fit(data))


@pytest.fixture(scope="module")
def fitted():
    """Models that were trained once on planted rows or texts; "any" is either."""
    return Fitted()


@pytest.fixture(autouse=True)
def _only_what_it_reads(name, request):
    document_type = request.node.callspec.params.get("document_type")
    if document_type is not None and not reads(name, document_type):
        pytest.skip(f"{name} does not read {document_type}")


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_it_learns_what_was_planted(name, document_type, fitted):
    test = planted_dataset(seed=1) if document_type == "rows" else planted_texts(seed=1)
    top = fitted[name, document_type].predict(test, k=5)
    assert evaluate(top, test)["P@1"] > 95
    assert evaluate(top, test)["recall@5"] > 95


def test_predictions_are_ranked_and_scores_are_probabilities(name, fitted):
    top = fitted[name, "any"].predict(planted(name, seed=1), k=4)
    assert top.labels.shape == top.scores.shape == (300, 4)
    assert top.labels.dtype == np.int32
    assert top.scores.dtype == np.float32
    assert (np.diff(top.scores, axis=1) <= 0).all()
    assert top.scores.min() >= 0
    assert top.scores.max() <= 1
    assert all(len(set(row)) == 4 for row in top.labels.tolist())


def test_the_same_seed_gives_the_same_scores(name):
    test = planted(name, seed=1)
    first = train_briefly(name).predict(test)
    again, other = (make_brief(name, seed=seed).fit(planted(name)).predict(test) for seed in (0, 2))
    assert_same(name, first, again)
    assert np.array_equal(first.scores, other.scores) == (name in WITHOUT_CHANCE)


@pytest.mark.parametrize("document_type", ["rows"])
def test_a_model_of_large_values_is_saved_and_read(name, document_type, tmp_path):
    """Such as numbers of bytes, or times in milliseconds."""
    data = planted_dataset(n=100)
    large = replace(data, X=data.X * np.float32(1e10))
    model = make_brief(name).fit(large)
    model.save(tmp_path / "model")
    assert_same(name, load_model(tmp_path / "model").predict(large), model.predict(large))


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_a_saved_model_gives_identical_scores(name, document_type, fitted, tmp_path):
    test = planted_dataset(seed=1) if document_type == "rows" else planted_texts(seed=1)
    model = fitted[name, document_type]
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    before, after = model.predict(test), loaded.predict(test)
    assert_same(name, before, after)
    assert list(loaded.label_names_) == list(model.label_names_)
    assert loaded.get_parameters() == model.get_parameters()
    loaded.save(tmp_path / "again")
    assert load_model(tmp_path / "again").get_parameters() == model.get_parameters()


def test_the_number_of_threads_changes_rounding_at_most(name):
    """What torch trains adds up in another order; everything else has the same bits."""
    test, found = planted(name, seed=1), []
    for n in (1, 3):
        set_threads(n)
        try:
            found.append(make_brief(name).fit(planted(name)).predict(test))
        finally:
            set_threads(None)
    if get_model_class(name).needs_torch:
        assert np.abs(found[0].scores - found[1].scores).mean() < 0.01
    else:
        assert_same(name, *found)


N_THREADS = 32


def ask(model, data):
    """Return what a model says of some documents: at once, one by one, and why."""
    some = [data.take(np.array([i])) for i in range(3)]
    first = data.texts[0] if data.X is None else data.X[0]
    answers = [model.predict(data), *(model.predict(one) for one in some)]
    return answers, model.explain(first) if model.can_explain else None


def assert_same_answers(name, one, other):
    for top, same in zip(one[0], other[0], strict=True):
        assert_same(name, top, same)
    if name not in PREDICTS_THERE:
        assert one[1] == other[1]


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_32_threads_get_the_answers_of_one(name, document_type, fitted, tmp_path):
    """The first calls of all count as well: they build what later ones share."""
    test = (planted_dataset if document_type == "rows" else planted_texts)(n=8, seed=1)
    fitted[name, document_type].save(tmp_path / "model")
    alone = ask(load_model(tmp_path / "model"), test)
    loaded, together = load_model(tmp_path / "model"), Barrier(N_THREADS)

    def ask_with_others(_):
        together.wait()
        return [ask(loaded, test) for _ in range(2)]

    with ThreadPoolExecutor(N_THREADS) as pool:
        found = list(pool.map(ask_with_others, range(N_THREADS)))
    for answers in (answer for each in found for answer in each):
        assert_same_answers(name, alone, answers)


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_one_document_at_a_time_gives_what_a_batch_gives(name, document_type, fitted):
    test = planted_dataset(seed=1) if document_type == "rows" else planted_texts(seed=1)
    model = fitted[name, document_type]
    batch = model.predict(test)
    for i in range(0, 300, 37):
        one = model.predict(test.take(np.array([i])))
        assert_same(name, one, TopK(batch.labels[i : i + 1], batch.scores[i : i + 1]))


def test_a_document_without_features_gets_the_most_frequent_labels(name, fitted):
    model = fitted[name, "any"]
    counts = model.training_counts_.label_counts
    expected = np.argsort(-counts, kind="stable")[:3]
    rows = sp.csr_matrix((2, model.n_features_), dtype=np.float32)
    empty = model.predict(documents(name, rows), k=3)
    assert empty.labels.tolist() == [expected.tolist()] * 2
    np.testing.assert_allclose(empty.scores[0], counts[expected] / 300, rtol=1e-6)
    unknown = fitted[name, "texts"].predict(["", "nothing known here", "!?"], k=3)
    assert unknown.labels.tolist() == [expected.tolist()] * 3


def test_a_calibrated_model_gives_probabilities_in_order_and_after_loading(name, fitted, tmp_path):
    held_out, test = planted(name, seed=2), planted(name, seed=1)
    model = copy(fitted[name, "any"]).calibrate(held_out)
    top = model.predict(test, k=4)
    assert (np.diff(top.scores, axis=1) <= 0).all()
    assert evaluate(top, test)["P@1"] > 95
    assert np.array_equal(model.predict(test, k=2).labels, top.labels[:, :2])
    chosen = model.predict(test, threshold="auto")
    assert abs((chosen.labels != NO_LABEL).sum() - test.Y.nnz) < 0.1 * test.Y.nnz
    model.save(tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict(test, k=4).scores, top.scores)


def test_thresholds_of_any_kind_of_number(name, fitted):
    model, test = copy(fitted[name, "any"]).calibrate(planted(name, seed=2)), planted(name, n=9)
    expected = model.predict(test, threshold=0.5)
    assert_same(name, model.predict(test, threshold=np.float32(0.5)), expected)
    for wrong in ([0.5], np.array([0.5, 0.5]), True, float("nan")):
        with pytest.raises(ParameterError, match="The threshold must be a probability from 0 to 1"):
            model.predict(test, threshold=wrong)


def test_training_again_forgets_the_calibration(name):
    model = copy(train_briefly(name))
    learned = model.calibrate(planted(name, seed=2)).calibration_
    assert learned is not None
    assert model.fit(planted(name)).calibration_ is not learned


def test_training_into_a_folder_leaves_nothing_beside_it(name, tmp_path):
    brief = BRIEF if get_model_class(name).has_parameter("epochs") else {}
    settings = {**QUICK.get(name, {}), **brief}
    train(planted(name), model=name, settings=settings, out=tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# -- scores of given labels ---------------------------------------------------------------------


def assert_same_scores(name, one, other):
    """Compare bit by bit; roughly, if a GPU added them up."""
    np.testing.assert_allclose(one, other, rtol=0, atol=0.05 if name in PREDICTS_THERE else 0)


def some_labels(n, n_labels=12, width=20):
    """Return labels in any order, some twice, some none."""
    return np.random.default_rng(5).integers(-1, n_labels, (n, width)).astype(np.int32)


@pytest.mark.parametrize("document_type", ["rows", "texts"])
@pytest.mark.parametrize("method", [None, "isotonic", "logistic"])
def test_scores_of_labels_are_those_of_predictions(name, document_type, method, fitted):
    make_data = planted_dataset if document_type == "rows" else planted_texts
    model = copy(fitted[name, document_type])
    test = make_data(n=300 if method is None else 100, seed=1)
    if method is not None:
        model.calibrate(make_data(seed=2), method=method)
    for k in (1, 3, 12):
        top = model.predict(test, k=k)
        assert_same_scores(name, model.score(test, top.labels), top.scores)


@pytest.mark.parametrize("document_type", ["rows", "texts"])
def test_scores_of_labels_in_any_order_and_of_none(name, document_type, fitted):
    test = (planted_dataset if document_type == "rows" else planted_texts)(seed=1)
    model, labels = fitted[name, document_type], some_labels(300)
    scores = model.score(test, labels)
    assert scores.dtype == np.float32
    assert scores.shape == (300, 20)
    assert (scores[labels == NO_LABEL] == 0).all()
    every = np.tile(np.arange(12, dtype=np.int32), (300, 1))
    in_order = model.score(test, every)
    asked = labels >= 0
    looked_up = np.take_along_axis(in_order, np.where(asked, labels, 0), 1)
    assert_same_scores(name, scores[asked], looked_up[asked])
    for i in range(0, 300, 37):
        one = model.score(test.take(np.array([i])), labels[i : i + 1, :3].tolist())
        assert_same_scores(name, one, scores[i : i + 1, :3])


def test_labels_are_renamed_merged_and_dropped_without_training(name, fitted, tmp_path):
    data, original = planted(name, n=60, seed=1), fitted[name, "any"]
    model = copy(original)
    names = list(original.label_names_)
    own = original.predict(data, len(names))
    scores = original.score(data, np.tile(np.arange(len(names)), (len(data), 1)))
    rename_label(model, names[0], "a new name")
    merge_labels(model, names[1:3], names[3])
    drop_labels(model, [names[4]])
    top = model.predict(data, len(names))
    gone = {1, 2, 4}
    assert gone.isdisjoint(np.unique(top.labels).tolist())
    assert (top.labels >= 0).sum() == len(data) * (len(names) - 3) or (own.labels < 0).any()
    kept = [label for label in range(len(names)) if label not in {*gone, 3}]
    some = model.score(data, np.tile(np.array([*kept, 3, 1, 4]), (len(data), 1)))
    assert (some[:, : len(kept)] == scores[:, kept]).all()
    assert some[:, -3] == pytest.approx(np.minimum(scores[:, 1:4].sum(axis=1), 1), abs=1e-5)
    assert (some[:, -2:] == 0).all()
    place = np.argmax(top.labels == 3, axis=1)
    there = (top.labels == 3).any(axis=1)
    found = np.take_along_axis(top.scores, place[:, None], 1)[:, 0]
    assert found[there] == pytest.approx(some[there, -3], abs=1e-5)
    assert (np.diff(top.scores, axis=1) <= 0).all()
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.label_names_[0] == "a new name"
    assert (again.predict(data, 5).labels == model.predict(data, 5).labels).all()
    assert (original.predict(data, 3).labels == own.labels[:, :3]).all()  # a copy was changed


def test_scores_do_not_depend_on_the_number_of_threads(name, fitted):
    test, found = planted(name, seed=1), []
    for n in (1, 3):
        set_threads(n)
        try:
            found.append(fitted[name, "any"].score(test, some_labels(300)))
        finally:
            set_threads(None)
    assert_same_scores(name, *found)


def test_scores_of_a_document_without_features_are_the_shares_of_labels(name, fitted):
    model = fitted[name, "any"]
    shares = (model.training_counts_.label_counts / 300).astype(np.float32)
    rows = documents(name, sp.csr_matrix((2, model.n_features_), dtype=np.float32))
    labels = np.array([[3, -1, 7], [0, 0, 11]])
    expected = [[shares[3], 0, shares[7]], [shares[0], shares[0], shares[11]]]
    assert model.score(rows, labels).tolist() == expected
    calibrated = copy(model).calibrate(planted(name, seed=2))
    assert calibrated.score(rows, labels).tolist() == expected


def test_scores_of_a_loaded_model(name, fitted, tmp_path):
    test = planted(name, seed=1)
    fitted[name, "any"].save(tmp_path / "model")
    after = load_model(tmp_path / "model").score(test, some_labels(300))
    assert_same_scores(name, after, fitted[name, "any"].score(test, some_labels(300)))


def test_scores_of_no_documents_and_of_no_labels(name, fitted):
    model, test = fitted[name, "any"], planted(name, n=4, seed=1)
    assert model.score(test, np.empty((4, 0), np.int32)).shape == (4, 0)
    rows = sp.csr_matrix((0, model.n_features_), dtype=np.float32)
    assert model.score(documents(name, rows), np.empty((0, 3), np.int32)).shape == (0, 3)
    assert (model.score(test, np.full((4, 2), -1)) == 0).all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((3, 2), np.int32), r"each of the 4 documents; got an array of shape \(3, 2\)"),
        (np.zeros(4, np.int32), r"each of the 4 documents; got an array of shape \(4,\)"),
        (np.zeros((4, 2)), "must be whole numbers, places in label_names_; got float64"),
        (np.full((4, 1), 12), "must be from 0 to 11, or -1 for none; got 12"),
        (np.full((4, 1), -2), "must be from 0 to 11, or -1 for none; got -2"),
        ([[1, 2], [1], [1], [1]], "must have as many labels for each document; fill up with -1"),
        ([["a"]] * 4, "must be whole numbers, places in label_names_; got <U1"),
    ],
)
def test_wrong_candidates(name, labels, message, fitted):
    with pytest.raises(DataError, match=message):
        fitted[name, "any"].score(planted(name, n=4, seed=1), labels)


def test_scoring_before_fitting(name):
    with pytest.raises(NotFittedError, match="has not been trained yet; call fit first"):
        make(name).score(planted(name), np.zeros((300, 1), np.int32))


def test_no_documents_to_predict(name, fitted):
    model = fitted[name, "any"]
    rows = sp.csr_matrix((0, model.n_features_), dtype=np.float32)
    assert model.predict(documents(name, rows), k=3).labels.shape == (0, 3)


def test_training_with_empty_rows_unlabelled_documents_and_unseen_labels(name):
    X, Y = planted_rows()
    X, Y = X.tolil(), Y.tolil()
    X[:5] = 0
    Y[3:9] = 0
    Y = sp.hstack([Y, sp.csr_matrix((300, 3))]).tocsr()
    texts_or_rows = documents(name, X.tocsr())
    top = make_brief(name).fit(texts_or_rows, Y).predict(texts_or_rows, k=15)
    assert top.labels.shape == (300, 15)
    assert (np.diff(top.scores, axis=1) <= 0).all()


def test_more_labels_wanted_than_there_are(name, fitted):
    top = fitted[name, "any"].predict(planted(name, seed=1), k=100)
    assert top.k == 12


@pytest.mark.parametrize(("n", "n_labels"), [(30, 1), (1, 3), (1, 1)])
def test_one_label_or_one_document(name, n, n_labels):
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.random((n, 6)).astype(np.float32))
    Y = sp.csr_matrix(np.ones((n, n_labels), np.float32))
    texts_or_rows = documents(name, X)
    top = make_small(name).fit(texts_or_rows, Y).predict(texts_or_rows, k=5)
    assert top.labels.shape == (n, n_labels)
    assert sorted(top.labels[0].tolist()) == list(range(n_labels))


def test_a_document_may_carry_very_many_labels(name):
    X, Y = planted_rows(n=40)
    crowded = sp.csr_matrix((np.ones(2500, np.float32), (np.zeros(2500, int), np.arange(2500))))
    Y = sp.csr_matrix(sp.vstack([crowded, sp.hstack([Y[1:], sp.csr_matrix((39, 2488))])]))
    texts_or_rows = documents(name, X)
    few = {"walks": TINY["walks"]} if name == "dxml" else {}  # from each of the labels
    top = make_small(name, **few).fit(texts_or_rows, Y).predict(texts_or_rows, k=5)
    assert top.labels.shape == (40, 5)
    assert np.isfinite(top.scores).all()


def test_excluded_pairs_are_never_predicted(name, fitted):
    test = planted(name, seed=1)
    free = fitted[name, "any"].predict(test, k=4)
    best = sp.csr_matrix(
        (np.ones(300, np.float32), free.labels[:, 0], np.arange(301)), shape=test.Y.shape
    )
    barred = replace(test, exclude=best)
    top = fitted[name, "any"].predict(barred, k=3)
    assert np.array_equal(top.labels, free.labels[:, 1:])


def test_all_labels_excluded_leaves_none(name, fitted):
    test = planted(name, n=3, seed=1)
    all_labels = sp.csr_matrix(np.ones(test.Y.shape, np.float32))
    top = fitted[name, "any"].predict(replace(test, exclude=all_labels), k=3)
    assert (top.labels == NO_LABEL).all()
    assert (top.scores == 0).all()


def test_predicting_before_fitting(name):
    with pytest.raises(NotFittedError, match="has not been trained yet; call fit first"):
        make(name).predict(planted(name))


def test_saving_before_fitting(name, tmp_path):
    with pytest.raises(NotFittedError):
        make(name).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_k_must_be_at_least_one(name, fitted):
    with pytest.raises(ParameterError, match=r"k must be at least 1. Got 0 instead."):
        fitted[name, "any"].predict(planted(name), k=0)


@pytest.mark.parametrize("k", [2.5, "5", True])
def test_k_must_be_a_whole_number(name, k, fitted):
    with pytest.raises(ParameterError, match=rf"k must be a whole number of .* Got {k!r} instead."):
        fitted[name, "any"].predict(planted(name), k=k)
    assert fitted[name, "any"].predict(planted(name, n=2), k=np.int64(3)).k == 3


def test_what_can_be_explained(name, fitted):
    model, data = fitted[name, "any"], planted(name, n=2, seed=1)
    if not model.can_explain:
        pytest.skip(f"{name} cannot explain its predictions")
    some = data.texts if data.X is None else data.X
    with pytest.raises(DataError, match="one document can be explained at a time; got 2"):
        model.explain(some)
    with pytest.raises(ParameterError, match=r"label must be the name of a label. Got 3 instead."):
        model.explain(some[0], 3)
    if model.trained_on == "texts":
        assert model.explain(some[:1]).terms


@pytest.mark.parametrize("document_type", ["rows"])
def test_texts_for_a_model_of_rows(name, document_type, fitted):
    with pytest.raises(DataError, match="trained on feature rows with 56 columns and cannot read"):
        fitted[name, "rows"].predict(["a text"])


def test_rows_for_a_model_of_texts(name, fitted):
    with pytest.raises(DataError, match="trained on texts and cannot read feature rows"):
        fitted[name, "texts"].predict(planted_rows()[0])


@pytest.mark.parametrize("document_type", ["rows"])
def test_another_number_of_features(name, document_type, fitted):
    with pytest.raises(DataError, match="the rows have 7 features, but the model was trained on"):
        fitted[name, "rows"].predict(sp.csr_matrix((2, 7), dtype=np.float32))


def test_rows_and_labels_of_different_length(name):
    X, Y = planted_rows()
    n_first = "300 rows of X" if reads(name, "rows") else "300 texts"
    with pytest.raises(DataError, match=f"{n_first} but 299 rows of labels Y"):
        make(name).fit(documents(name, X), Y[:299])


@pytest.mark.parametrize("document_type", ["rows"])
def test_values_that_are_not_finite(name, document_type, fitted):
    X, Y = planted_rows()
    for value in (np.nan, np.inf):
        broken = X.copy()
        broken.data[7] = value
        with pytest.raises(DataError):
            make(name).fit(broken, Y)
        with pytest.raises(DataError):
            fitted[name, "rows"].predict(broken)


def test_too_little_memory_is_said_before_training(name, monkeypatch):
    """A fusion says why it left its members out."""
    monkeypatch.setattr("longtail.runtime.memory.free_ram", lambda: 1 << 10)
    expected = TrainingError if name == "fusion" else MemoryPlanError
    with pytest.raises(expected, match=r"but only 1 KiB of RAM is free|no member of the fusion"):
        make(name).fit(planted(name))


def test_nothing_to_learn_from(name):
    X, Y = planted_rows()
    with pytest.raises(DataError, match="of 300 documents, none carries a label"):
        make(name).fit(documents(name, X), sp.csr_matrix(Y.shape, dtype=np.float32))


@pytest.mark.parametrize("document_type", ["rows"])
@pytest.mark.parametrize("n_features", [0, 6])
def test_rows_without_any_feature(name, document_type, n_features):
    _, Y = planted_rows()
    with pytest.raises(DataError, match="of 300 rows, none holds a feature; there is nothing"):
        make(name).fit(sp.csr_matrix((300, n_features), dtype=np.float32), Y)


def test_features_of_documents_without_labels_alone(name, tmp_path):
    X, Y = planted_rows(n=40)
    X, Y = X.tolil(), Y.tolil()
    X[5:], Y[:5] = 0, 0
    texts_or_rows = documents(name, X.tocsr())
    model = make_small(name).fit(texts_or_rows, Y.tocsr())
    model.save(tmp_path / "model")
    assert_same(
        name, model.predict(texts_or_rows), load_model(tmp_path / "model").predict(texts_or_rows)
    )


def test_a_failed_fit_leaves_the_model_as_it_was(name):
    X, Y = planted_rows()
    X = documents(name, X)
    model = copy(train_briefly(name))
    before = model.predict(X)
    with pytest.raises(DataError):
        model.fit(X, Y[:10])
    assert np.array_equal(model.predict(X).scores, before.scores)


def test_rows_are_refused_by_a_model_of_texts_alone(name):
    if reads(name, "rows"):
        pytest.skip(f"{name} reads rows")
    with pytest.raises(DataError, match=f"{name} cannot be trained on feature rows; models that"):
        make(name).fit(planted_dataset())


def test_an_unknown_setting_names_the_nearest(name):
    with pytest.raises(ParameterError, match="has no parameter 'sede'; did you mean 'seed'"):
        get_model_class(name).from_settings({"sede": "1"})


def test_settings_come_as_strings(name):
    model = get_model_class(name).from_settings({"seed": "7", "tfidf.ngrams": "1"})
    assert model.seed == 7
    assert model.tfidf.ngrams == 1
    with pytest.raises(ParameterError, match=r"must be a whole number. Got 'x' instead."):
        get_model_class(name).from_settings({"seed": "x"})
    with pytest.raises(ParameterError, match="has no preset 'nope'"):
        get_model_class(name).from_settings({"preset": "nope"})


def test_what_it_shows_of_itself_are_the_settings_that_were_given(name):
    model_class = get_model_class(name)
    assert repr(model_class()) == f"{model_class.__name__}()"
    assert repr(model_class(seed=3)) == f"{model_class.__name__}(seed=3)"
    for setting, value in QUICK.get(name, {}).items():
        shown = f"{setting}={value!r}" in repr(make(name))
        assert shown == (value != getattr(model_class(), setting))


def test_a_preset_gives_what_it_names_and_other_settings_override_it(name):
    model_class = get_model_class(name)
    for preset, named in model_class.presets.items():
        model = model_class.from_settings({"preset": preset})
        model.check_parameters()
        defaults = model_class().get_parameters()
        assert model.get_parameters() == {**defaults, **named}
        one = next(iter(named))
        over = model_class.from_settings({"preset": preset, one: defaults[one]})
        assert over.get_parameters() == {**defaults, **named, one: defaults[one]}


def test_presets_in_python(name):
    model_class = get_model_class(name)
    defaults = model_class().get_parameters()
    for preset, named in model_class.presets.items():
        assert type(model_class.preset(preset)) is model_class
        assert model_class.preset(preset).get_parameters() == {**defaults, **named}
        one = next(iter(named))
        over = model_class.preset(preset, seed=3, tfidf=Tfidf(ngrams=1), **{one: defaults[one]})
        assert over.get_parameters() == {**defaults, **named, "seed": 3, one: defaults[one]}
        assert over.tfidf.ngrams == 1
        with pytest.raises(ParameterError, match="has no parameter 'sede'; did you mean 'seed'"):
            model_class.preset(preset, sede=1)
        with pytest.raises(ParameterError, match=r"must be a whole number. Got '3' instead."):
            model_class.preset(preset, seed="3")  # a text is for from_settings
    with pytest.raises(ParameterError, match=f"{model_class.__name__} has no preset 'nope'"):
        model_class.preset("nope")


def test_every_preset_can_be_trained(name):
    for preset in get_model_class(name).presets:
        sizes = {
            key: value for key, value in TINY.items() if get_model_class(name).has_parameter(key)
        }
        model = get_model_class(name).from_settings({"preset": preset, **sizes})
        top = model.fit(planted(name, n=60)).predict(planted(name, n=10, seed=1), k=3)
        assert top.labels.shape == (10, 3)


@pytest.mark.slow
def test_every_preset_learns_what_was_planted(name):
    for preset in get_model_class(name).presets.keys() - FOR_LARGE_SETS:
        model = get_model_class(name).from_settings({"preset": preset})
        top = model.fit(planted(name)).predict(planted(name, seed=1))
        assert evaluate(top, planted(name, seed=1))["P@1"] > 90


def test_a_seed_out_of_range(name):
    with pytest.raises(ParameterError, match=r"The 'seed' parameter of .* Got -1 instead"):
        make(name, seed=-1).fit(planted(name))


def test_files_that_do_not_fit_together(name, fitted, tmp_path):
    """Whole files of a model whose parts disagree must not reach compiled code."""
    from longtail.runtime.store import read_folder, write_folder

    fitted[name, "any"].save(tmp_path / "model")
    files = read_folder(tmp_path / "model")
    files.texts["label_names"] = list(files.texts["label_names"])[:-1]
    write_folder(tmp_path / "broken", files)
    with pytest.raises(ModelFileError, match="do not fit together"):
        load_model(tmp_path / "broken")


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: files.config.update(n_documents=0),
        lambda files: files.config.update(n_documents="many"),
        lambda files: files.config.update(n_features=-1),
        lambda files: files.config.update(trained_on="pictures"),
        lambda files: files.config["parameters"].update(seed=-1),
        lambda files: files.config["parameters"].update(seed="0"),
        lambda files: files.arrays.update(label_counts=files.arrays["label_counts"][:-1]),
        lambda files: files.arrays.update(label_counts=-files.arrays["label_counts"]),
        lambda files: files.texts.update(label_names=list(files.texts["label_names"])[:-1]),
    ],
)
def test_shared_state_that_does_not_fit_is_refused(name, damage, fitted):
    files = fitted[name, "any"].to_files()
    damage(files)
    with pytest.raises(ModelFileError, match="do not fit together"):
        get_model_class(name).from_files(files, "model")


@pytest.mark.parametrize("document_type", ["texts"])
def test_a_vocabulary_longer_than_the_rows_is_refused(name, document_type, fitted):
    files = fitted[name, document_type].to_files()
    if "vocabulary" not in files.texts:
        pytest.skip(f"{name} makes no rows of texts")
    files.texts["vocabulary"] = [*files.texts["vocabulary"], "zzz"]
    start, idf = files.arrays["features.pairs.start"], files.arrays["features.idf"]
    files.arrays["features.pairs.start"] = np.append(start, start[-1])
    files.arrays["features.idf"] = np.ones(len(idf) + 1, np.float32)
    with pytest.raises(ModelFileError, match="do not fit together"):
        get_model_class(name).from_files(files, "model")


def _with_new_label(data):
    """Return the documents with a new label on all that carry the first; its name is a word."""
    Y = sp.csr_matrix(sp.hstack([data.Y, data.Y[:, [0]]]))
    return replace(data, Y=Y, label_names=[*data.label_names, "word0"])


def test_new_labels_that_no_document_carries_keep_their_numbers(name, fitted, tmp_path):
    """As members of a fusion get them, which must count labels as it does."""
    model = copy(fitted[name, "any"])
    if not model.can_update or name == "fusion":
        pytest.skip(f"{name} is no member that can be updated")
    known, nobody = planted(name), sp.csr_matrix((100, 1), dtype=np.float32)
    n, some = known.n_labels, known.take(np.arange(100))
    Y = sp.csr_matrix(sp.hstack([some.Y, nobody, some.Y[:, [0]], nobody]))
    names = [*model.label_names_, "before", "word0", "behind"]
    model.take_in(replace(some, Y=Y, label_names=names), False, SILENT)
    assert list(model.label_names_) == names
    assert model.training_counts_.label_counts[n:].tolist() == [0, Y[:, n + 1].nnz, 0]
    carriers = known.take(np.flatnonzero(known.Y[:, 0].toarray().ravel()))
    asked = np.tile(np.arange(n, n + 3), (len(carriers), 1))
    before, carried, behind = model.score(carriers, asked).mean(axis=0)
    assert carried > 2 * max(before, behind)
    model.save(tmp_path / "model")
    assert_same(name, load_model(tmp_path / "model").predict(some), model.predict(some))


def test_an_update_brings_new_labels_and_keeps_what_was_known(name, tmp_path):
    if not get_model_class(name).can_update:
        pytest.skip(f"{name} cannot be updated")
    data, known = planted(name), planted(name, seed=1)
    test = _with_new_label(known)
    first, more = data.take(np.arange(150)), _with_new_label(data.take(np.arange(150, 300)))
    model = make(name, **({"rank": "neighbours"} if name == "mnn" else {})).fit(first)
    before = evaluate(model.predict(known), known)["P@1"]
    model.partial_fit(more)
    new, n_carry = 12, int(more.Y[:, [12]].sum())
    assert list(model.label_names_) == list(test.label_names)
    assert model.training_counts_.n_documents == 300
    assert model.training_counts_.label_counts[new] == n_carry
    assert evaluate(model.predict(test), test)["P@1"] > before - 3
    top, carry = model.predict(test), test.Y[:, [new]].toarray().ravel() > 0
    assert (top.labels[carry] == new).any(axis=1).mean() > 0.6
    scores = model.score(test, np.full((len(test), 1), new, np.int32)).ravel()
    pairs = scores[carry][:, None] - scores[~carry]
    assert (pairs > 0).mean() + (pairs == 0).mean() / 2 > 0.75  # in which order they come
    assert_same(name, TopK(top.labels, model.score(test, top.labels)), top)
    model.save(tmp_path / "model")
    assert_same(name, load_model(tmp_path / "model").predict(test), top)
