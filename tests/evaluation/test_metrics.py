"""Every metric three ways: by hand, against a slow literal version, and on random cases."""

import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data.dataset import Dataset
from longtail.errors import DataError, ParameterError
from longtail.evaluation.bands import evaluate_bands
from longtail.evaluation.metrics import KS, TrainingCounts, evaluate, evaluate_given, find_hits
from longtail.evaluation.propensity import PROPENSITIES
from longtail.topk import NO_LABEL, TopK

BY_LABEL = ("F1-micro", "F1-macro", "F1-document", "coverage")


def make_top(rows: list[list[int]], names: list[str] | None = None) -> TopK:
    labels = np.array(rows, dtype=np.int32).reshape(len(rows), -1)
    return TopK(labels, np.zeros(labels.shape, dtype=np.float32), names)


def make_Y(rows: list[list[int]], n_labels: int) -> sp.csr_matrix:
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.array([label for row in rows for label in sorted(row)], dtype=np.int32)
    ones = np.ones(len(indices), dtype=np.float32)
    return sp.csr_matrix((ones, indices, indptr), shape=(len(rows), n_labels))


def make_dataset(rows: list[list[int]], names: list[str], exclude=None) -> Dataset:
    texts = [f"text {i}" for i in range(len(rows))]
    return Dataset(make_Y(rows, len(names)), names, texts=texts, exclude=exclude)


# --- worked by hand -------------------------------------------------------------------------

# Two documents. The first has the labels 0 and 3, found at ranks 1 and 3; the second has label 2,
# found at rank 2.
TRUE = [[0, 3], [2]]
PREDICTED = [[0, 1, 3, 4, 5], [1, 2, 0, 3, 4]]


def test_precision_by_hand():
    result = evaluate(make_top(PREDICTED), make_Y(TRUE, 6))
    assert result["P@1"] == pytest.approx(100 * (1 + 0) / 2)
    assert result["P@3"] == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)
    assert result["P@5"] == pytest.approx(100 * (2 / 5 + 1 / 5) / 2)


def test_recall_by_hand():
    result = evaluate(make_top(PREDICTED), make_Y(TRUE, 6))
    assert result["recall@1"] == pytest.approx(100 * (1 / 2 + 0) / 2)
    assert result["recall@3"] == pytest.approx(100 * (2 / 2 + 1) / 2)


def test_ndcg_by_hand():
    # Discounts: rank 1: 1, rank 2: 1/log2(3) = 0.63093, rank 3: 1/2.
    # Document 1: DCG@3 = 1 + 0.5, best 1 + 0.63093. Document 2: DCG@3 = 0.63093, best 1, since it
    # has one label only.
    result = evaluate(make_top(PREDICTED), make_Y(TRUE, 6))
    assert result["nDCG@1"] == pytest.approx(50.0)
    assert result["nDCG@3"] == pytest.approx(100 * (1.5 / 1.630930 + 0.630930) / 2, abs=1e-4)
    assert result["nDCG@5"] == pytest.approx(77.5328, abs=1e-3)


def test_propensity_scored_metrics_by_hand():
    # With A, B = 0.55, 1.5 and N = 1000: C = (ln 1000 - 1)·2.5^0.55 = 5.907755·1.655303 = 9.779128.
    # 1/p = 1 + C·(N_l + 1.5)^-0.55:
    #   label 0, N_l = 500: 501.5^-0.55 = 0.032723, 1/p = 1.320005
    #   label 2, N_l = 10:   11.5^-0.55 = 0.260988, 1/p = 3.552235
    #   label 3, N_l = 1:     2.5^-0.55 = 0.604119, 1/p = 6.907755
    train = TrainingCounts(1000, np.array([500, 50, 10, 1, 0, 0]))
    result = evaluate(make_top(PREDICTED), make_Y(TRUE, 6), train=train)
    zero, two, three = 1.320005, 3.552235, 6.907755
    # k = 1: found label 0 in document 1 only; best are labels 3 and 2.
    assert result["PSP@1"] == pytest.approx(100 * zero / (three + two), abs=1e-3)
    assert result["PSnDCG@1"] == pytest.approx(result["PSP@1"])
    # k = 3: all three are found, as in the best ranking.
    assert result["PSP@3"] == pytest.approx(100.0)
    # Ranked 0 at 1, 3 at 3; 2 at 2. Best: 3 at 1, 0 at 2; 2 at 1. Normalizers 1.630930 and 1.
    reached = (zero + three / 2) / 1.630930 + two * 0.630930
    best = (three + zero * 0.630930) / 1.630930 + two
    assert result["PSnDCG@3"] == pytest.approx(100 * reached / best, abs=1e-3)


def test_propensity_constants_for_wikipedia_and_amazon():
    top, Y = make_top([[0]]), make_Y([[0, 1]], 2)
    train = TrainingCounts(100, np.array([50, 2]))
    for name, (a, b) in PROPENSITIES.items():
        c = (math.log(100) - 1) * (b + 1) ** a
        frequent, rare = 1 + c * (50 + b) ** -a, 1 + c * (2 + b) ** -a
        result = evaluate(top, Y, train=train, propensity=name)
        assert result["PSP@1"] == pytest.approx(100 * frequent / rare)
        assert result["PSP@3"] == pytest.approx(100 * frequent / (frequent + rare))
    assert PROPENSITIES["wikipedia"] == (0.5, 0.4)
    assert PROPENSITIES["amazon"] == (0.6, 2.6)


# --- the rules for odd cases ----------------------------------------------------------------


def test_document_without_labels_scores_zero_and_counts():
    with_empty = evaluate(make_top([[0], [0]]), make_Y([[0], []], 1))
    assert with_empty["P@1"] == with_empty["nDCG@5"] == with_empty["recall@1"] == 50.0
    assert with_empty["n_documents"] == 2


def test_no_true_labels_at_all_gives_zero_everywhere():
    train = TrainingCounts(10, np.array([3]))
    result = evaluate(make_top([[0], [0]]), make_Y([[], []], 1), train=train)
    assert {value for key, value in result.items() if key != "n_documents"} == {0.0}


def test_one_column_divides_by_k_all_the_same():
    result = evaluate(make_top([[0]]), make_Y([[0, 1]], 2))
    assert [result[f"P@{k}"] for k in KS] == pytest.approx([100, 100 / 3, 20])
    assert result["recall@5"] == 50.0


def test_prediction_without_columns_misses_everything():
    top = TopK(np.empty((2, 0), dtype=np.int32), np.empty((2, 0), dtype=np.float32))
    assert evaluate(top, make_Y([[0], [1]], 2))["P@5"] == 0.0


def test_no_label_is_a_miss_that_keeps_its_rank():
    result = evaluate(make_top([[NO_LABEL, 1, NO_LABEL]]), make_Y([[1]], 2))
    assert result["P@1"] == 0.0
    assert result["nDCG@3"] == pytest.approx(100 / math.log2(3))


def test_repeated_label_counts_once():
    result = evaluate(make_top([[1, 1, 1, 1, 1]]), make_Y([[1]], 2))
    assert result["P@5"] == 20.0
    assert result["recall@5"] == 100.0


def test_predicted_id_beyond_the_labels_is_a_miss_and_not_the_next_documents_label():
    # With two labels, the key of (row 0, label 2) would be that of (row 1, label 0).
    result = evaluate(make_top([[2], [1]]), make_Y([[1], [0]], 2))
    assert result["P@1"] == 0.0


def test_labels_beyond_the_training_counts_have_count_zero():
    Y = make_Y([[0, 2]], 3)
    short = evaluate(make_top([[0]]), Y, train=TrainingCounts(50, np.array([9])))
    long = evaluate(make_top([[0]]), Y, train=TrainingCounts(50, np.array([9, 0, 0, 0])))
    assert short == long
    assert 0 < short["PSP@1"] < 100


def test_one_training_document_does_not_turn_propensities_negative():
    train = TrainingCounts(1, np.array([1, 0]))
    result = evaluate(make_top([[0]]), make_Y([[0, 1]], 2), train=train)
    assert result["PSP@1"] == 100.0
    assert result["PSP@3"] == 50.0


def test_unsorted_duplicate_and_zero_entries_of_a_raw_matrix_are_put_right():
    raw = sp.csr_matrix(
        (np.array([1.0, 1.0, 1.0, 0.0]), np.array([3, 0, 3, 1]), np.array([0, 4])), shape=(1, 4)
    )
    assert evaluate(make_top([[1, 3, 0]]), raw) == evaluate(
        make_top([[1, 3, 0]]), make_Y([[0, 3]], 4)
    )
    assert raw.nnz == 4  # the caller's matrix stays as it was


def test_excluded_pairs_leave_the_ranking_and_others_move_up():
    exclude = make_Y([[0], []], 3)
    data = make_dataset([[1], [0]], ["a", "b", "c"], exclude=exclude)
    result = evaluate(make_top([[0, 1], [0, 1]]), data)
    assert result["P@1"] == 100.0


def test_training_dataset_fixes_the_label_ids_by_name():
    train = make_dataset([[0], [1]], ["wine", "beer"])
    test = make_dataset([[0], [1]], ["beer", "tea"])  # tea gets id 2: training lacks it
    top = make_top([[1, 0], [0, 1]])
    result = evaluate(top, test, train=train)
    assert result["P@1"] == 50.0
    assert evaluate(top, test)["P@1"] == 0.0


def test_keys_are_those_of_the_contract():
    plain = evaluate(make_top([[0]]), make_Y([[0]], 1))
    names = [f"{name}@{k}" for name in ("P", "nDCG", "recall") for k in KS]
    by_label = [f"{name}@{k}" for name in BY_LABEL for k in KS]
    assert list(plain) == [*names, *by_label, "n_documents"]
    scored = evaluate(make_top([[0]]), make_Y([[0]], 1), train=TrainingCounts(9, np.array([1])))
    assert set(scored) - set(plain) == {f"{name}@{k}" for name in ("PSP", "PSnDCG") for k in KS}


def test_counts_of_a_dataset():
    counts = TrainingCounts.of(make_dataset([[0, 1], [1], []], ["a", "b", "c"]))
    assert counts.n_documents == 3
    assert counts.label_counts.tolist() == [1, 2, 0]
    assert counts.label_counts.dtype == np.int64


def test_lengths_that_differ_are_an_error():
    with pytest.raises(DataError, match=r"^2 predictions for 1 documents; they must be as many$"):
        evaluate(make_top([[0], [0]]), make_Y([[0]], 1))


def test_nothing_to_evaluate_is_an_error():
    top = TopK(np.empty((0, 5), dtype=np.int32), np.empty((0, 5), dtype=np.float32))
    with pytest.raises(DataError, match=r"^there are no documents to evaluate$"):
        evaluate(top, make_Y([], 3))


def test_unknown_propensity_is_an_error_with_a_suggestion():
    with pytest.raises(ParameterError) as caught:
        evaluate(make_top([[0]]), make_Y([[0]], 1), propensity="amazn")
    assert str(caught.value) == (
        "The 'propensity' parameter must be one of default, wikipedia, amazon. "
        "Got 'amazn' instead; did you mean 'amazon'?"
    )


# --- a slow, literal version ----------------------------------------------------------------


def slow_document(gain, predicted, true, k):
    """Return the sum of gains and the normalized DCG of one document, both at k."""
    found, dcg, seen = 0.0, 0.0, set()
    for rank, label in enumerate(predicted[:k], start=1):
        if label in true and label not in seen:
            found += gain(label)
            dcg += gain(label) / math.log2(rank + 1)
        seen.add(label)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(true)) + 1))
    return found, dcg / ideal if true else 0.0


def slow_evaluate(predicted, true, n_train, counts, a=0.55, b=1.5):
    def gain(label):
        n_label = counts[label] if label < len(counts) else 0
        c = (math.log(n_train) - 1) * (b + 1) ** a
        return 1 + c * math.exp(-a * math.log(n_label + b))

    result = {"n_documents": len(true)}
    for k in KS:
        plain = [slow_document(lambda _: 1, p, t, k) for p, t in zip(predicted, true, strict=True)]
        scored = [slow_document(gain, p, t, k) for p, t in zip(predicted, true, strict=True)]
        ideal = [sorted(t, key=gain, reverse=True) for t in true]
        best = [slow_document(gain, p, t, k) for p, t in zip(ideal, true, strict=True)]
        recalls = [f / len(t) for (f, _), t in zip(plain, true, strict=True) if t]
        result[f"P@{k}"] = 100 * sum(f for f, _ in plain) / k / len(true)
        result[f"nDCG@{k}"] = 100 * sum(d for _, d in plain) / len(true)
        result[f"recall@{k}"] = 100 * sum(recalls) / len(true)
        possible = [max(sum(x), 1e-300) for x in zip(*best, strict=True)]
        result[f"PSP@{k}"] = 100 * sum(f for f, _ in scored) / possible[0]
        result[f"PSnDCG@{k}"] = 100 * sum(d for _, d in scored) / possible[1]
        result |= slow_by_label(predicted, true, k)
    return result


def slow_by_label(predicted, true, k):
    given = [(i, label) for i, row in enumerate(predicted) for label in set(row[:k]) - {-1}]
    # A label that stands twice in a row counts at its first place, so the sets are the same.
    carried = [(i, label) for i, row in enumerate(true) for label in row]

    def f1(of):
        n_given, n_true = sum(map(of, given)), sum(map(of, carried))
        return 2 * sum(map(of, set(given) & set(carried))) / max(n_given + n_true, 1)

    labels = {label for _, label in given + carried}
    found = {label for _, label in set(given) & set(carried)}
    by_label = [f1(lambda pair, label=label: pair[1] == label) for label in labels]
    by_document = [f1(lambda pair, i=i: pair[0] == i) for i in range(len(true))]
    return {
        f"F1-micro@{k}": 100 * f1(lambda pair: True),
        f"F1-macro@{k}": 100 * sum(by_label) / max(len(by_label), 1),
        f"F1-document@{k}": 100 * sum(by_document) / len(by_document),
        f"coverage@{k}": 100 * len(found) / max(len({label for _, label in carried}), 1),
    }


@st.composite
def cases(draw):
    n_labels = draw(st.integers(1, 12))
    n = draw(st.integers(1, 8))
    k = draw(st.integers(1, 7))
    label = st.integers(0, n_labels - 1)
    true = draw(st.lists(st.sets(label), min_size=n, max_size=n))
    row = st.lists(st.integers(-1, n_labels + 2), min_size=k, max_size=k)
    predicted = draw(st.lists(row, min_size=n, max_size=n))
    counts = draw(st.lists(st.integers(0, 50), min_size=1, max_size=n_labels))
    return predicted, [list(x) for x in true], n_labels, draw(st.integers(3, 500)), counts


@given(cases())
@settings(max_examples=150, deadline=None)
def test_equals_the_slow_version(case):
    predicted, true, n_labels, n_train, counts = case
    train = TrainingCounts(n_train, np.array(counts, dtype=np.int64))
    quick = evaluate(make_top(predicted), make_Y(true, n_labels), train=train)
    assert quick == pytest.approx(slow_evaluate(predicted, true, n_train, counts), abs=1e-9)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_values_lie_between_0_and_100_and_rise_with_recall(case):
    predicted, true, n_labels, n_train, counts = case
    train = TrainingCounts(n_train, np.array(counts, dtype=np.int64))
    result = evaluate(make_top(predicted), make_Y(true, n_labels), train=train)
    assert all(0 <= v <= 100 + 1e-9 for name, v in result.items() if name != "n_documents")
    assert result["recall@1"] <= result["recall@3"] <= result["recall@5"]


@given(cases())
@settings(max_examples=60, deadline=None)
def test_the_best_ranking_reaches_100(case):
    _, true, n_labels, n_train, counts = case
    if not any(true):
        true = [[0]]
    padded = [*counts, *[0] * n_labels]
    best = [sorted(t, key=lambda label: padded[label])[:5] for t in true]
    top = make_top([[*b, *[NO_LABEL] * (5 - len(b))] for b in best])
    train = TrainingCounts(n_train, np.array(counts, dtype=np.int64))
    result = evaluate(top, make_Y(true, n_labels), train=train)
    assert [result[f"{m}@{k}"] for m in ("PSP", "PSnDCG") for k in KS] == pytest.approx([100] * 6)


# --- bands ----------------------------------------------------------------------------------


def test_bands_by_hand():
    # Counts 50, 25, 10, 10, 5 of 100 pairs: label 0 holds half (head), label 1 leads to 75 %, so
    # the torso takes label 2, and 3 with it since it is as frequent; label 4 is the tail and
    # label 5 was never seen.
    train = TrainingCounts(100, np.array([50, 25, 10, 10, 5, 0]))
    true = [[0, 1], [0, 4], [2, 5], [0]]
    top = make_top([[0, 1, 4], [4, 1, 2], [3, 2, 0], [1, 2, 3]])
    head, torso, tail, unseen = evaluate_bands(top, make_Y(true, 6), train)

    assert [head.name, torso.name, tail.name, unseen.name] == ["head", "torso", "tail", "unseen"]
    assert [b.n_labels for b in (head, torso, tail, unseen)] == [1, 3, 1, 1]
    assert (torso.min_documents, torso.max_documents) == (10, 25)
    assert [b.n_pairs for b in (head, torso, tail, unseen)] == [3, 2, 1, 1]
    assert head.share == pytest.approx(100 * 3 / 7)
    # Head pairs: only document 1's is found, at rank 1. Torso: both, at rank 2. Tail: at rank 1.
    assert head.recall == pytest.approx({1: 100 / 3, 3: 100 / 3, 5: 100 / 3})
    assert torso.recall == pytest.approx({1: 0, 3: 100, 5: 100})
    assert tail.recall == pytest.approx({1: 100, 3: 100, 5: 100})
    assert unseen.recall == pytest.approx({1: 0, 3: 0, 5: 0})
    assert head.precision[1] == pytest.approx(25.0)
    assert torso.precision[3] == pytest.approx(100 * 2 / 12)


@given(cases())
@settings(max_examples=80, deadline=None)
def test_bands_add_up_to_the_whole(case):
    predicted, true, n_labels, n_train, counts = case
    train = TrainingCounts(n_train, np.array(counts, dtype=np.int64))
    top, Y = make_top(predicted), make_Y(true, n_labels)
    whole, bands = evaluate(top, Y), evaluate_bands(top, Y, train)
    for k in KS:
        assert sum(band.precision[k] for band in bands) == pytest.approx(whole[f"P@{k}"])
        found = sum(band.recall[k] / 100 * band.n_pairs for band in bands)
        assert found == pytest.approx(whole[f"P@{k}"] / 100 * k * len(true))
    assert sum(band.n_pairs for band in bands) == Y.nnz


def test_unseen_row_is_left_out_without_unseen_pairs():
    train = TrainingCounts(4, np.array([4, 0]))
    names = [band.name for band in evaluate_bands(make_top([[0]]), make_Y([[0]], 2), train)]
    assert names == ["head", "torso", "tail"]


def test_band_as_dict_is_flat():
    train = TrainingCounts(4, np.array([4]))
    head = evaluate_bands(make_top([[0]]), make_Y([[0]], 1), train)[0].as_dict()
    assert head == {
        "name": "head",
        "n_labels": 1,
        "min_documents": 4,
        "max_documents": 4,
        "n_pairs": 1,
        "share": 100.0,
        "P@1": 100.0,
        "P@3": pytest.approx(100 / 3),
        "P@5": 20.0,
        "recall@1": 100.0,
        "recall@3": 100.0,
        "recall@5": 100.0,
    }


def test_many_documents_and_labels_make_no_dense_matrix():
    rng = np.random.default_rng(0)
    n, n_labels = 120_000, 25_000
    Y = make_Y([sorted(set(row)) for row in rng.integers(0, n_labels, (n, 3)).tolist()], n_labels)
    top = make_top(rng.integers(0, n_labels, (n, 5)).tolist())
    train = TrainingCounts(n, np.bincount(Y.indices, minlength=n_labels))
    tracemalloc.start()
    evaluate(top, Y, train=train)
    evaluate_bands(top, Y, train)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500 * n  # bytes; a document has eight, and n_labels would be 25,000 or more


# ----------------------------------------------------------------------- labels above a threshold


def test_given_labels_by_hand():
    labels = np.array([[0, 1, NO_LABEL], [1, NO_LABEL, NO_LABEL], [2, 0, 3]], np.int32)
    Y = sp.csr_matrix(np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], np.float32))
    report = evaluate_given(TopK(labels, np.zeros((3, 3), np.float32)), Y)
    # 3 of 6 given are right, of 4 that are true.
    assert report["precision-micro"] == pytest.approx(50)
    assert report["recall-micro"] == pytest.approx(75)
    assert report["F1-micro"] == pytest.approx(100 * 6 / 10)
    # By document: 1 of 2 and 2; 0 of 1 and 0; 2 of 3 and 2.
    assert report["precision-document"] == pytest.approx(100 * (1 / 2 + 0 + 2 / 3) / 3)
    assert report["recall-document"] == pytest.approx(100 * (1 / 2 + 0 + 1) / 3)
    assert report["F1-document"] == pytest.approx(100 * (2 / 4 + 0 + 4 / 5) / 3)
    # By label, five of them: 2 of 2 and 2; 0 of 2 and 0; 1 of 1 and 1; 0 of 1 and 0; 0 of 0 and 1.
    assert report["precision-macro"] == pytest.approx(100 * 2 / 5)
    assert report["recall-macro"] == pytest.approx(100 * 2 / 5)
    assert report["F1-macro"] == pytest.approx(100 * 2 / 5)
    assert report["labels-per-document"] == 2


def test_given_labels_agree_with_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    truth, given = rng.random((40, 6)) < 0.4, rng.random((40, 6)) < 0.5
    labels = np.where(given, np.arange(6), NO_LABEL).astype(np.int32)
    report = evaluate_given(
        TopK(labels, given.astype(np.float32)), sp.csr_matrix(truth, dtype=float)
    )
    for ours, theirs in (("micro", "micro"), ("macro", "macro"), ("document", "samples")):
        expected = f1_score(truth, given, average=theirs, zero_division=0)
        assert report[f"F1-{ours}"] == pytest.approx(100 * expected)


def test_nothing_given():
    top = TopK(np.full((2, 3), NO_LABEL, np.int32), np.zeros((2, 3), np.float32))
    report = evaluate_given(top, sp.csr_matrix(np.eye(2, 4)))
    assert set(report.values()) == {0}
    with pytest.raises(DataError, match="there are no documents to evaluate"):
        evaluate_given(TopK(top.labels[:0], top.scores[:0]), sp.csr_matrix((0, 4)))


def test_hits_beyond_the_known_labels():
    top = TopK(np.array([[0, 7, NO_LABEL]], np.int32), np.ones((1, 3), np.float32))
    assert find_hits(top, sp.csr_matrix(np.array([[1.0, 1.0]]))).tolist() == [[True, False, False]]


# --- labels by their names --------------------------------------------------------------------


def test_labels_are_compared_by_name_whatever_their_ids():
    top = make_top([[0, 1], [1, 0]], ["beer", "wine"])
    test = make_dataset([[1], [0]], ["wine", "beer"])  # the ids are the other way round
    train = make_dataset([[1], [1], [0]], ["tea", "wine"])
    result = evaluate(top, test, train=train)
    assert result["P@1"] == 100
    assert result["PSP@1"] == pytest.approx(100)
    assert result == pytest.approx(
        evaluate(top, test, train=TrainingCounts(3, np.array([0, 2], np.int64)))
    )
    assert [band.n_pairs for band in evaluate_bands(top, test, train)] == [1, 0, 0, 1]


def test_a_bare_matrix_is_compared_by_ids():
    top = make_top([[0, 1]], ["beer", "wine"])
    assert evaluate(top, make_Y([[0]], 2))["P@1"] == 100


def test_labels_that_no_prediction_can_be_are_an_error_with_examples_of_both_sides():
    top = make_top([[0, 1]], ["beer", "wine"])
    with pytest.raises(DataError) as caught:
        evaluate(top, make_dataset([[0, 1]], ["Beer", "Wine"]))
    assert str(caught.value) == (
        "the model knows none of the labels that these documents carry, such as 'Beer', 'Wine'; "
        "it knows 'beer', 'wine', …; use the names that it was trained with"
    )


def test_a_share_of_unknown_labels_is_said_and_missed():
    top = make_top([[0, 1], [1, 0]], ["beer", "wine"])
    with pytest.warns(UserWarning, match="does not know") as caught:
        result = evaluate(top, make_dataset([[0, 1], [1]], ["beer", "tea"]))
    assert str(caught[0].message) == (
        "the model does not know 1 of the 2 labels that these documents carry, such as 'tea'; "
        "they are 66.7 % of the pairs and count as missed"
    )
    assert caught[0].filename == __file__
    assert result["recall@1"] == 25


def test_documents_without_any_label_are_no_error():
    assert evaluate(make_top([[0]], ["a"]), make_dataset([[]], ["b"]))["P@1"] == 0


# --- any cut ------------------------------------------------------------------------------------


def test_metrics_at_any_k():
    predicted = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    result = evaluate(make_top(predicted), make_Y([[9, 1]], 12), k=(10, 2))
    assert [key for key in result if key.startswith("P@")] == ["P@2", "P@10"]
    assert result["P@10"] == pytest.approx(20)
    assert result["nDCG@10"] == pytest.approx(
        100 * (1 / math.log2(3) + 1 / math.log2(11)) / (1 + 1 / math.log2(3))
    )
    assert result["coverage@2"] == 50
    alone = evaluate(make_top(predicted), make_Y([[9, 1]], 12), k=10)
    assert alone["P@10"] == result["P@10"]
    assert "P@2" not in alone
    band = evaluate_bands(
        make_top(predicted), make_Y([[9]], 12), TrainingCounts(12, np.ones(12, np.int64)), k=10
    )
    assert sum(row.precision[10] for row in band) == pytest.approx(10)


@pytest.mark.parametrize("k", [0, (), (1, 0), "5", 1.5, (1, 2.5), True])
def test_a_k_that_is_none_is_an_error(k):
    with pytest.raises(ParameterError, match="The 'k' parameter must be a whole number"):
        evaluate(make_top([[0]]), make_Y([[0]], 1), k=k)


def test_a_k_beyond_the_predictions_is_an_error():
    top = make_top([[0, 1]], [f"label {i}" for i in range(9)])
    with pytest.raises(ParameterError) as caught:
        evaluate(top, make_Y([[0]], 9), k=(1, 7))
    assert str(caught.value) == (
        "the predictions hold 2 labels for each document, too few for metrics at 7; "
        "predict with k=7"
    )
    few = make_top([[0, 1]], ["a", "b"])  # there are no more labels
    assert evaluate(few, make_Y([[0]], 2), k=10)["P@10"] == pytest.approx(10)


def test_a_threshold_adds_what_is_given_above_it():
    top = TopK(np.array([[0, 1]], np.int32), np.array([[0.9, 0.2]], np.float32), ["a", "b"])
    result = evaluate(top, make_dataset([[1, 0]], ["b", "a"]), threshold=0.5)
    assert result["F1-micro"] == pytest.approx(100 * 2 / 3)
    assert result["labels-per-document"] == 1
