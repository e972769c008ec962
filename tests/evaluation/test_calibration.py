"""From scores to probabilities: curves, shifts, thresholds, and what they refuse."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from planted import planted_dataset, planted_texts
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression

from longtail import KNN, Linear
from longtail.errors import DataError, NotFittedError, ParameterError
from longtail.evaluation.calibration import (
    Calibration,
    choose_depth,
    find_thresholds,
    predict_unseen,
)
from longtail.evaluation.curve import STRAIGHT, check_method, fit_curve, log_odds, sigmoid
from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.evaluation.reliability import error_of_first, reliability
from longtail.evaluation.steps import FIRST, fit_shifts
from longtail.evaluation.tradeoff import Tradeoff
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK


def planted_predictions(n=800, k=8, n_labels=30, seed=0, bias=None):
    """Return predictions whose scores are the cubes of the probabilities that they are right."""
    rng = np.random.default_rng(seed)
    probabilities = -np.sort(-(rng.random((n, k)) ** 2), axis=1)
    labels = np.argsort(rng.random((n, n_labels)), axis=1)[:, :k].astype(np.int32)
    true = probabilities if bias is None else sigmoid(log_odds(probabilities) + bias[labels])
    hits = rng.random((n, k)) < true
    rows, columns = np.nonzero(hits)[0], labels[hits]
    Y = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(n, n_labels))
    return TopK(labels, (probabilities**3).astype(np.float32)), Y, probabilities


# ---------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize("method", ["isotonic", "logistic"])
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=200))
def test_a_curve_never_falls_and_stays_between_0_and_1(method, pairs):
    scores, hits = np.array([s for s, _ in pairs]), np.array([h for _, h in pairs])
    curve = fit_curve(log_odds(scores), hits, method)
    probabilities = curve.probabilities(np.linspace(0, 1, 50))
    assert (np.diff(probabilities) >= -1e-12).all()
    assert probabilities.min() >= 0
    assert probabilities.max() <= 1


def test_isotonic_finds_a_curve_of_any_shape():
    rng = np.random.default_rng(0)
    truth = rng.random(50_000)
    hits = rng.random(50_000) < truth
    curve = fit_curve(log_odds(truth**3), hits)
    asked = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(curve.probabilities(asked**3), asked, atol=0.03)


def test_isotonic_pools_what_is_out_of_order():
    scores = np.repeat([0.2, 0.4, 0.6, 0.8], 100)
    hits = np.concatenate([np.arange(100) < n for n in (10, 60, 40, 90)])
    curve = fit_curve(log_odds(scores), hits)
    np.testing.assert_allclose(sigmoid(curve.heights), [10.5 / 101, 100.5 / 201, 90.5 / 101])
    middle = (log_odds(np.array([0.4])) + log_odds(np.array([0.6]))) / 2
    np.testing.assert_allclose(curve.places[1], middle[0], atol=1e-12)


def test_logistic_is_logistic_regression():
    rng = np.random.default_rng(1)
    scores = rng.random(3000)
    hits = rng.random(3000) < sigmoid(2.5 * log_odds(scores) - 1)
    theirs = LogisticRegression(C=1e6).fit(log_odds(scores)[:, None], hits)
    expected = theirs.predict_proba(log_odds(scores)[:, None])[:, 1]
    ours = fit_curve(log_odds(scores), hits, "logistic").probabilities(scores)
    np.testing.assert_allclose(ours, expected, atol=2e-3)


def test_logistic_does_not_fall_where_hits_have_low_scores():
    curve = fit_curve(log_odds(np.array([0.1, 0.9] * 50)), np.array([True, False] * 50), "logistic")
    np.testing.assert_allclose(curve.probabilities(np.array([0.1, 0.9])), [0.5, 0.5], atol=1e-9)


def test_a_method_that_does_not_exist():
    with pytest.raises(
        ParameterError, match=r"one of isotonic, logistic. Got 'istonic' instead; did"
    ):
        check_method("istonic")


# ---------------------------------------------------------------------------------------- shifts


def test_a_shift_is_the_most_likely_one():
    places, hits = np.array([-1.0, 0.0, 2.0, 0.5]), np.array([True, True, True, False])

    def unlikely(shift, rows):
        p = sigmoid(places[rows] + shift)
        return shift**2 / (2 * 0.7**2) - np.log(np.where(hits[rows], p, 1 - p)).sum()

    shifts = fit_shifts(places, hits, np.array([0, 0, 0, 2]), 3, 0.7)
    for group, rows in ((0, [0, 1, 2]), (2, [3])):
        best = minimize_scalar(unlikely, args=(rows,)).x
        assert shifts[group] == pytest.approx(best, abs=1e-6)
    assert shifts[1] == 0


def test_a_shift_of_many_surprises_is_found():
    places, hits = np.full(4000, -9.0), np.ones(4000, bool)
    shift = fit_shifts(places, hits, np.zeros(4000, int), 1, 1.0)[0]
    pull = 4000 * (1 - sigmoid(np.array([shift - 9.0])))[0]
    assert shift == pytest.approx(pull, rel=1e-3)


def test_labels_that_score_too_low_move_up():
    bias = np.where(np.arange(30) < 15, 2.0, -2.0)
    top, Y, _ = planted_predictions(n=2000, bias=bias)
    calibration = Calibration.fit(top, Y)
    assert calibration.reorders
    assert calibration.steps.shifts[:15].min() > 0 > calibration.steps.shifts[15:].max()
    before, after = evaluate(top, Y), evaluate(calibration.apply(top), Y)
    assert after["P@1"] > before["P@1"] + 5


def test_labels_of_like_frequency_share_a_shift():
    bias = np.where(np.arange(3000) < 1500, 1.5, -1.5)
    counts = TrainingCounts(5000, np.where(np.arange(3000) < 1500, 1, 100))
    top, Y, _ = planted_predictions(n=1500, n_labels=3000, bias=bias)
    shifts = Calibration.fit(top, Y, counts=counts).steps.shifts
    assert 0.8 < shifts[:1500].mean() < 2
    assert -2 < shifts[1500:].mean() < -0.8


def test_labels_stay_in_place_where_shifts_do_not_help():
    top, Y, _ = planted_predictions()
    calibration = Calibration.fit(top, Y)
    assert not calibration.reorders
    assert np.array_equal(calibration.apply(top).labels, top.labels)


# ----------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("method", ["isotonic", "logistic"])
def test_probabilities_are_near_the_truth(method):
    top, Y, _ = planted_predictions(n=3000)
    other, other_Y, truth = planted_predictions(n=3000, seed=1)
    calibration = Calibration.fit(top, Y, method)
    found = calibration.apply(other)
    assert np.abs(found.scores - truth).mean() < 0.03
    assert error_of_first(found, other_Y) < 0.03 < error_of_first(other, other_Y)
    assert calibration.error == pytest.approx(error_of_first(found, other_Y), abs=0.02)
    assert calibration.error_before > 0.1


@pytest.mark.parametrize("reorder", [None, False, True])
def test_probabilities_stay_as_they_are(reorder):
    """A curve could only learn by heart which of these documents had luck."""
    wrong, Y, truth = planted_predictions(n=400)
    top = TopK(wrong.labels, truth.astype(np.float32))
    calibration = Calibration.fit(top, Y, reorder=reorder)
    assert calibration.steps.base is calibration.steps.first is STRAIGHT
    assert calibration.error <= calibration.error_before + 0.01
    if not calibration.reorders:
        np.testing.assert_allclose(calibration.apply(top).scores, top.scores, atol=1e-6)
    assert Calibration.fit(wrong, Y, reorder=reorder).steps.base is not STRAIGHT


def test_what_is_reported_was_measured_on_unseen_documents():
    """Pure noise has nothing to learn: a curve would find patterns in what it has seen."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(5, dtype=np.int32), (200, 1))
    scores = -np.sort(-rng.random((200, 5)), axis=1).astype(np.float32)
    Y = sp.csr_matrix((rng.random((200, 5)) < 0.5).astype(np.float32))
    unseen = predict_unseen(TopK(labels, scores), Y)
    assert abs(unseen.scores.mean() - 0.5) < 0.05


def test_no_label_stays_no_label_and_rows_fall():
    top, Y, _ = planted_predictions()
    top.labels[:, 6:], top.scores[:, 6:] = NO_LABEL, 0
    for reorder in (False, True):
        found = Calibration.fit(top, Y, reorder=reorder).apply(top)
        assert (found.labels[:, 6:] == NO_LABEL).all()
        assert (found.scores[:, 6:] == 0).all()
        assert (found.labels[:, :6] != NO_LABEL).all()
        assert (np.diff(found.scores, axis=1) <= 0).all()


def test_asking_for_fewer_labels_gives_the_first_of_more():
    top, Y, _ = planted_predictions(bias=np.linspace(-2, 2, 30))
    calibration = Calibration.fit(top.first(6), Y, reorder=True)
    six, eight = calibration.apply(top.first(6)), calibration.apply(top)
    assert np.array_equal(six.labels, eight.labels[:, :6])
    assert np.array_equal(six.scores, eight.scores[:, :6])
    assert np.array_equal(np.sort(eight.labels[:, 6:], axis=1), np.sort(top.labels[:, 6:], axis=1))


def test_labels_that_came_later_have_no_shift():
    top, Y, _ = planted_predictions(bias=np.linspace(-2, 2, 30))
    calibration = Calibration.fit(top, Y, reorder=True)
    later = TopK(top.labels + 30, top.scores)
    assert np.array_equal(calibration.apply(later).labels, later.labels)


def test_one_label_and_one_document():
    Y = sp.csr_matrix(np.ones((1, 1), np.float32))
    top = TopK(np.zeros((1, 1), np.int32), np.full((1, 1), 0.3, np.float32))
    calibration = Calibration.fit(top, Y)
    assert 0.5 <= calibration.apply(top).scores[0, 0] <= 1


def test_saving(tmp_path):
    top, Y, _ = planted_predictions(bias=np.linspace(-2, 2, 30))
    calibration = Calibration.fit(top, Y)
    files = Files()
    calibration.add_to_files(files)
    Calibration.describe().check(files, {})
    again = Calibration.from_files(files)
    assert again is not None
    assert np.array_equal(again.apply(top).scores, calibration.apply(top).scores)
    same = {"steps": again.steps, "tradeoff": again.tradeoff}
    assert vars(again) == {**vars(calibration), **same}
    assert again.tradeoff is not None
    assert again.tradeoff.expect(3) == calibration.tradeoff.expect(3)
    del files.arrays["calibration.tradeoff"], files.config["calibration"]["n_true"]
    Calibration.describe().check(files, {})  # saved before there was any
    assert Calibration.from_files(files).tradeoff is None
    assert Calibration.from_files(Files()) is None


@pytest.mark.parametrize("damage", ["order", "falls", "shape", "type", "shifts", "method", "right"])
def test_damaged_files(damage):
    top, Y, _ = planted_predictions(bias=np.linspace(-2, 2, 30))
    files = Files()
    Calibration.fit(top, Y).add_to_files(files)
    curve = files.arrays["calibration.first"]
    changed = {
        "order": curve[:, ::-1],
        "falls": np.stack([curve[0], -curve[1]]),
        "shape": curve[0],
        "type": curve.astype(np.float32),
    }
    files.arrays["calibration.first"] = changed.get(damage, curve)
    if damage == "shifts":
        files.arrays["calibration.shifts"][3] = np.nan
    if damage == "method":
        files.config["calibration"]["method"] = "magic"
    if damage == "right":
        files.arrays["calibration.tradeoff"][1] += 1
    with pytest.raises(ValueError, match=r"calibration\.\w+ must"):
        Calibration.describe().check(files, {})


def test_nothing_to_learn_from():
    top, Y, _ = planted_predictions(n=20)
    with pytest.raises(DataError, match="there are no held-out documents"):
        Calibration.fit(TopK(top.labels[:0], top.scores[:0]), Y[:0])
    with pytest.raises(DataError, match="not one label predicted for the 20 held-out documents is"):
        Calibration.fit(top, sp.csr_matrix(Y.shape, dtype=np.float32))
    with pytest.raises(DataError, match="20 predictions for 19 documents"):
        Calibration.fit(top, Y[:19])


# -------------------------------------------------------------------------- how good and how many


def test_the_calibration_error_by_hand():
    probabilities = np.array([0.05, 0.15, 0.95, 1.0, 0.9])
    hits = np.array([False, True, True, True, False])
    # Bins of a tenth: |0.05-0|, |0.15-1|, and three together |0.95-2/3|.
    expected = (0.05 + 0.85 + 3 * (0.95 - 2 / 3)) / 5
    assert reliability(probabilities, hits, bins=10).error == pytest.approx(expected)
    found = reliability(probabilities, hits, bins=10)
    assert found.counts.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 3]
    assert found.means[9] == pytest.approx(0.95)
    assert np.isnan(found.shares[5])
    assert reliability(np.array([]), np.array([])).error == 0


def test_only_the_first_five_labels_are_judged():
    labels = np.arange(7, dtype=np.int32)[None]
    top = TopK(labels, np.full((1, 7), 1.0, np.float32))
    Y = sp.csr_matrix(np.array([[1, 1, 1, 1, 1, 0, 0]], np.float32))
    assert FIRST == 5
    assert error_of_first(top, Y) == 0


def test_thresholds_are_the_best_ones():
    top, Y, truth = planted_predictions(n=150)
    top = TopK(top.labels, truth.astype(np.float32))
    found = find_thresholds(top, Y)

    def f1(threshold):
        micro, document = [0, 0], []
        for i in range(len(top)):
            given = {
                int(label)
                for label, score in zip(top.labels[i], top.scores[i], strict=True)
                if score >= threshold
            }
            true = set(Y[i].indices.tolist())
            micro[0] += 2 * len(given & true)
            micro[1] += len(given) + len(true)
            document.append(2 * len(given & true) / max(len(given) + len(true), 1))
        return micro[0] / micro[1], np.mean(document)

    tried = np.array([f1(i / 100) for i in range(1, 100)])
    assert f1(found["micro"])[0] == pytest.approx(tried[:, 0].max())
    assert f1(found["document"])[1] == pytest.approx(tried[:, 1].max())


@pytest.mark.parametrize("k", [1, 3, None])
def test_what_to_expect_at_a_threshold(k):
    top, Y, truth = planted_predictions(n=60)
    top = TopK(top.labels, truth.astype(np.float32))
    for found in Tradeoff.of(top, Y).expect(k):
        given = [
            (i, int(label))
            for i in range(len(top))
            for label, score in zip(top.labels[i, :k], top.scores[i, :k], strict=True)
            if score >= np.float32(found.threshold)
        ]
        right = sum(Y[i, label] > 0 for i, label in given)
        assert found.recall == right / Y.nnz
        assert found.labels == len(given) / len(top)
        assert found.precision == (right / len(given) if given else None)
        assert found.f1 == 2 * right / (len(given) + Y.nnz)


def test_the_depth_grows_with_the_labels_of_documents():
    assert choose_depth(sp.csr_matrix(np.ones((4, 2)))) == 20
    assert choose_depth(sp.csr_matrix(np.ones((4, 15)))) == 45
    assert choose_depth(sp.csr_matrix(np.ones((4, 500)))) == 100
    assert choose_depth(sp.csr_matrix((0, 3))) == 20


def test_what_nothing_speaks_for_stays_at_0():
    """Two labels fill up the list: they come last whatever their shifts, and are never probable."""
    top, Y, _ = planted_predictions(bias=np.linspace(-2, 2, 30))
    top.scores[:, 6:] = 0
    for reorder in (False, True):
        found = Calibration.fit(top, Y, reorder=reorder).apply(top)
        assert np.array_equal(found.labels[:, 6:], top.labels[:, 6:])
        assert (found.scores[:, 6:] == 0).all()
        assert (found.scores[:, :6] > 0).all()


# -------------------------------------------------------------------------------- through a model


def test_a_model_refuses_what_says_nothing_about_it():
    model = Linear()
    with pytest.raises(NotFittedError, match="has not been trained yet; call fit first"):
        model.calibrate(planted_dataset())
    model.fit(planted_texts())
    texts = planted_texts(n=30)
    with pytest.raises(DataError, match="30 documents, none carries a label that the model knows"):
        model.calibrate(texts.texts, [["other"]] * 30)
    with pytest.raises(DataError, match="they have no labels at all"):
        model.calibrate(texts.texts, [[]] * 30)
    with pytest.raises(DataError, match="cannot read feature rows"):
        model.calibrate(planted_dataset().X, [["label 1"]] * 300)
    with pytest.raises(ParameterError, match="one of isotonic, logistic"):
        model.calibrate(texts, method="magic")
    assert model.calibration_ is None


def test_labels_unknown_to_the_model_count_as_true():
    """They lower the recall that a threshold can reach, and nothing else."""
    data = planted_texts(seed=1)
    labels = [[data.label_names[i] for i in row.indices] + ["unknown"] for row in data.Y]
    model = Linear().fit(planted_texts()).calibrate(data.texts, labels)
    assert len(model.predict(data.texts, threshold="auto")) == 300


def test_new_documents_keep_the_calibration():
    model = KNN(n_neighbours=5).fit(planted_texts()).calibrate(planted_texts(seed=2))
    before = model.calibration_
    model.partial_fit(["gadget word1", "gadget word2"], [["new"], ["new"]])
    assert model.calibration_ is before
    assert model.predict(["word1"], k=3).scores.max() <= 1


@pytest.mark.parametrize("threshold", [1.5, -0.1, "often", True, float("nan"), None])
def test_a_threshold_is_a_probability_or_a_word(threshold):
    model = Linear().fit(planted_dataset())
    if threshold is None:
        with pytest.raises(ParameterError, match="a threshold needs probabilities, which this mod"):
            model.predict(planted_dataset(), threshold=0.5)
        return
    model.calibrate(planted_dataset(seed=2))
    with pytest.raises(ParameterError, match="must be a probability from 0 to 1, auto or auto-doc"):
        model.predict(planted_dataset(), threshold=threshold)
