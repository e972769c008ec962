import numpy as np
import pytest
import scipy.sparse as sp

from longtail.evaluation.metrics import TrainingCounts, contains_pairs, evaluate
from longtail.models.fusion.candidates import (
    COMMON,
    Candidates,
    Said,
    describe_candidates,
    spread,
    unite,
)
from longtail.models.fusion.stacking import (
    LogitAdjustment,
    Stacker,
    choose_adjustment,
    choose_stacker,
    concatenate,
    fit_logistic,
    fit_mean,
    possible_stackers,
)
from longtail.models.fusion.trees import Trees, grow_trees
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

SHARES = np.array([0.5, 0.25, 0.1, 0.0], np.float32)


def top(labels, scores):
    return TopK(np.array(labels, np.int32), np.array(scores, np.float32))


def gather(lists, shares):
    """Return the description of all labels in the lists, of which they know the scores."""
    labels = unite([each.labels for each in lists], len(shares))
    scores = [spread(each.labels, each.scores, labels, len(shares))[0] for each in lists]
    return describe_candidates(Said(labels, labels.shape[1], np.stack(scores)), shares)


def test_groups_of_documents_are_joined():
    first = gather([top([[0, 1]], [[0.8, 0.5]])], SHARES)
    second = gather([top([[2, 3], [1, 0]], [[0.8, 0.5], [0.7, 0.1]])], SHARES)
    both = concatenate([first, second])
    assert both.start.tolist() == [0, 2, 4, 6]
    assert both.labels.tolist() == [0, 1, 2, 3, 1, 0]
    assert len(both.inputs) == 6


def test_hits_are_pairs_of_the_label_matrix():
    Y = sp.csr_matrix(np.array([[0, 1, 0, 1], [1, 0, 0, 0]], np.float32))
    hits = contains_pairs(Y, np.array([0, 0, 1, 1]), np.array([1, 2, 0, 3], np.int32))
    assert hits.tolist() == [True, False, True, False]


def made_up(n=400, seed=0, shares=(0.2,) * 8):
    """Return candidates of two members, the first right more often than the second, and Y."""
    rng = np.random.default_rng(seed)
    n_labels = len(shares)
    Y = (rng.random((n, n_labels)) < shares).astype(np.float32)
    lists = []
    for noise in (0.8, 1.0):
        scores = 1 / (1 + np.exp(-(4 * Y - 2 + noise * 2 * rng.standard_normal(Y.shape))))
        order = np.argsort(-scores, axis=1)
        lists.append(top(order, np.take_along_axis(scores, order, 1)))
    Y = sp.csr_matrix(Y)
    counts = TrainingCounts(n, np.bincount(Y.indices, minlength=n_labels))
    return lists, gather(lists, np.array(shares, np.float32)), Y, counts


def test_logistic_regression_finds_the_minimum_of_its_loss():
    _, candidates, Y, _ = made_up()
    documents = np.repeat(np.arange(Y.shape[0]), np.diff(candidates.start))
    hits = contains_pairs(Y, documents, candidates.labels)
    fitted = fit_logistic(candidates.inputs, hits)
    assert (fitted.weights[:-COMMON] >= 0).all()
    literal = candidates.inputs.astype(np.float64) @ fitted.weights + fitted.bias
    np.testing.assert_allclose(fitted.log_odds(candidates.inputs), literal, rtol=1e-5)
    # Without a penalty on the constant, the mean probability is the share of hits.
    probability = 1 / (1 + np.exp(-literal))
    assert probability.mean() == pytest.approx(hits.mean(), rel=0.01)

    def loss(bias):
        return np.logaddexp(0, literal + bias).sum() - (literal + bias)[hits].sum()

    assert loss(0) < min(loss(0.05), loss(-0.05))


def test_the_mean_weighs_all_parts_alike():
    _, candidates, Y, _ = made_up()
    documents = np.repeat(np.arange(Y.shape[0]), np.diff(candidates.start))
    weights = fit_mean(candidates.inputs, contains_pairs(Y, documents, candidates.labels)).weights
    np.testing.assert_allclose(weights[[0, 1, 3, 4]], weights[0])
    assert weights[0] > 0
    assert (weights[[2, 5, 6]] == 0).all()


def test_a_combination_beats_each_part_and_trees_are_no_worse():
    lists, candidates, Y, counts = made_up(n=3000)
    choice = choose_stacker(candidates, Y, counts, ["mean", "logistic", "boosted"], 5)
    alone = [evaluate(each, Y)["P@1"] for each in lists]
    assert choice.reports["logistic"]["P@1"] > max(alone) + 1
    assert choice.reports["boosted"]["P@1"] > choice.reports["logistic"]["P@1"] - 1
    assert evaluate(choice.unseen, Y)["P@1"] == choice.reports[choice.stacker.name]["P@1"]


def test_probabilities_of_unseen_documents_are_right():
    _, candidates, Y, counts = made_up(n=3000)
    choice = choose_stacker(candidates, Y, counts, ["logistic"], 8)
    hits = np.take_along_axis(Y.toarray(), choice.unseen.labels.astype(np.int64), axis=1)
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (choice.unseen.scores >= low) & (choice.unseen.scores < low + 0.25)
        assert hits[inside].mean() == pytest.approx(choice.unseen.scores[inside].mean(), abs=0.05)


def test_trees_learn_what_no_weighted_sum_can():
    rng = np.random.default_rng(0)
    inputs = rng.random((5000, 3)).astype(np.float32)
    hits = (inputs[:, 0] > 0.5) ^ (inputs[:, 1] > 0.5)  # one of the two, not both
    margins = np.zeros(len(inputs))
    trees = grow_trees(inputs, hits, margins)
    literal = margins.copy()
    for columns, places, values in zip(*trees, strict=True):
        bits = (inputs[:, columns] > places).astype(int)
        literal += values[bits @ [8, 4, 2, 1]]
    assert ((literal > 0) == hits).mean() > 0.95
    nothing = fit_logistic(inputs[:, :3], hits)._replace(weights=np.zeros(3, np.float32), bias=0.0)
    combined = Stacker("boosted", nothing, trees).log_odds(inputs)
    np.testing.assert_allclose(combined, literal, atol=1e-4)


def test_hopeless_candidates_are_left_as_they_are():
    inputs = np.ones((1, 3), np.float32)
    trees = Trees(
        np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32), np.full((1, 16), 5, np.float32)
    )
    for bias, expected in ((-6.0, -6.0), (-1.0, 4.0)):
        logistic = fit_logistic(np.eye(3, dtype=np.float32), np.array([True, False, False]))
        logistic = logistic._replace(weights=np.zeros(3, np.float32), bias=bias)
        assert Stacker("boosted", logistic, trees).log_odds(inputs).tolist() == [expected]


def test_a_saved_combiner_ranks_alike():
    _, candidates, Y, counts = made_up(n=1500)
    stacker = choose_stacker(candidates, Y, counts, ["boosted"], 5).stacker
    files = Files()
    stacker.add_to_files(files)
    Stacker.describe(2).check(files, {})
    again = Stacker.from_files(files)
    before, after = stacker.rank(candidates, 3), again.rank(candidates, 3)
    assert np.array_equal(before.labels, after.labels)
    assert np.array_equal(before.scores, after.scores)


def test_files_that_do_not_fit_are_refused():
    _, candidates, Y, counts = made_up(n=1500)
    files = Files()
    choose_stacker(candidates, Y, counts, ["boosted"], 5).stacker.add_to_files(files)
    with pytest.raises(ValueError, match=r"stacker\.weights must have 10"):
        Stacker.describe(3).check(files, {})
    files.arrays["stacker.columns"] = files.arrays["stacker.columns"] + 50
    with pytest.raises(ValueError, match=r"stacker\.columns must hold .* below 7"):
        Stacker.describe(2).check(files, {})


def test_a_document_alone_gets_what_it_gets_among_others():
    lists, candidates, Y, counts = made_up(n=1500)
    stacker = choose_stacker(candidates, Y, counts, ["boosted"], 5).stacker
    whole = stacker.rank(candidates, 4)
    shares = np.full(8, 0.2, np.float32)
    for i in (0, 7, 1499):
        own = gather(
            [TopK(each.labels[i : i + 1], each.scores[i : i + 1]) for each in lists], shares
        )
        alone = stacker.rank(own, 4)
        assert np.array_equal(alone.labels[0], whole.labels[i])
        assert np.array_equal(alone.scores[0], whole.scores[i])


def test_fewer_candidates_than_wanted():
    found = Candidates(
        np.array([0, 1, 1], np.int64), np.array([2], np.int32), np.zeros((1, 5), np.float32)
    )
    logistic = fit_logistic(np.eye(5, dtype=np.float32), np.arange(5) == 0)
    ranked = Stacker("logistic", logistic, Trees.none()).rank(found, 2)
    assert ranked.labels.tolist() == [[2, NO_LABEL], [NO_LABEL, NO_LABEL]]
    assert ranked.scores[1].tolist() == [0, 0]


def test_trees_need_many_documents():
    assert possible_stackers(999) == ["mean", "logistic"]
    assert possible_stackers(1000)[-1] == "boosted"


def test_rare_labels_are_lifted_where_a_part_finds_them_better():
    _, candidates, Y, counts = made_up(n=3000, shares=np.geomspace(0.01, 0.4, 12))
    plain = choose_stacker(candidates, Y, counts, ["logistic"], 5)
    assert plain.stacker.adjustment == LogitAdjustment()
    assert plain.report == plain.reports["logistic"]
    wanted = dict.fromkeys(("PSP@1", "PSP@3", "PSP@5"), 0.0) | {
        "PSP@3": plain.report["PSP@3"] + 0.1
    }
    adjusted = choose_stacker(candidates, Y, counts, ["logistic"], 5, {"member": wanted})
    assert adjusted.stacker.adjustment.slope > 0
    assert adjusted.reports == plain.reports
    assert evaluate(adjusted.unseen, Y, train=counts) == adjusted.report
    assert adjusted.report["PSP@3"] > plain.report["PSP@3"]
    assert adjusted.stacker.rank(candidates, 1).scores.mean() == pytest.approx(
        plain.stacker.rank(candidates, 1).scores.mean(), abs=0.05
    )


@pytest.mark.parametrize(
    ("gain", "cost", "wanted", "slope"),
    [
        (1.0, 0.0, 0.05, 0.06),  # the least that is enough
        (1.0, 0.0, -1.0, 0.0),  # nothing is missing
        (-1.0, 0.0, 0.05, 0.0),  # it would do harm
        (1.0, 0.9, 0.5, 0.22),  # as much as precision bears
    ],
)
def test_a_lift_is_as_small_as_it_may_be(gain, cost, wanted, slope):
    precision = dict.fromkeys(("P@1", "P@3", "P@5"), 50.0)

    def judge(adjustment):
        rare = dict.fromkeys(("PSP@1", "PSP@3", "PSP@5"), 40 + gain * adjustment.slope)
        return {name: value - cost * adjustment.slope for name, value in precision.items()} | rare

    member = dict.fromkeys(("PSP@1", "PSP@3", "PSP@5"), 40 + wanted)
    found = choose_adjustment(judge(LogitAdjustment()), judge, -5.0, [member])
    assert found.slope == pytest.approx(slope)
