import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import DataError, ParameterError
from longtail.runtime.parallel import set_threads
from longtail.runtime.store import Files
from longtail.search.index import build_index
from longtail.search.sparse import SparseIndex
from longtail.search.voters import Voters, choose_voting, count_votes, weigh_votes
from longtail.topk import NO_LABEL, TopK

LABELS = sp.csr_matrix(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]], np.float32))


def test_labels_are_ranked_by_their_share_of_the_neighbours() -> None:
    top = count_votes(np.array([[0, 1, 2]]), np.array([[0.5, 0.3, 0.2]]), LABELS, 4)
    np.testing.assert_array_equal(top.labels, [[1, 0, 2, NO_LABEL]])
    np.testing.assert_allclose(top.scores, [[0.8, 0.5, 0.3, 0]], rtol=1e-6)


def test_equal_shares_are_ordered_by_label() -> None:
    top = count_votes(np.array([[1, 0]]), np.array([[1, 1]]), LABELS, 3)
    np.testing.assert_array_equal(top.labels, [[1, 0, 2]])
    np.testing.assert_array_equal(top.scores, np.array([[1, 0.5, 0.5]], np.float32))


def test_dissimilar_and_missing_neighbours_have_no_say() -> None:
    ids = np.array([[0, 1], [0, -1], [0, 1], [2, 2]])
    weights = np.array([[1, -1], [1, 1], [0, -1], [1, 1]])
    top = count_votes(ids, weights, LABELS, 2)
    np.testing.assert_array_equal(top.labels, [[0, 1], [0, 1], [NO_LABEL] * 2, [NO_LABEL] * 2])
    np.testing.assert_array_equal(top.scores, [[1, 1], [1, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize("threads", [1, 3])
def test_aggregation_agrees_with_a_literal_one(threads: int) -> None:
    set_threads(threads)
    rng = np.random.default_rng(0)
    Y = sp.random(200, 30, 0.1, format="csr", random_state=rng, data_rvs=np.ones)
    ids = rng.integers(-1, 200, (40, 8))
    weights = rng.uniform(-0.5, 1, (40, 8))
    used = np.where(ids < 0, 0, np.maximum(weights.astype(np.float32), 0)).astype(np.float64)
    shares = (used[:, :, None] * Y.toarray()[ids]).sum(axis=1) / used.sum(axis=1, keepdims=True)
    top = count_votes(ids, weights, Y, 6)
    set_threads(None)
    order = np.argsort(-shares.astype(np.float32), axis=1, kind="stable")[:, :6]
    expected = np.take_along_axis(shares, order, axis=1)
    np.testing.assert_allclose(top.scores, expected, rtol=1e-6)
    np.testing.assert_array_equal(top.labels, np.where(expected > 0, order, NO_LABEL))


def test_aggregation_of_nothing() -> None:
    top = count_votes(np.empty((0, 3), np.int32), np.empty((0, 3)), LABELS, 9)
    assert top.labels.shape == top.scores.shape == (0, 4)


def test_neighbours_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        count_votes(np.array([[0, 3]]), np.ones((1, 2)), LABELS, 1)
    assert str(caught.value) == "neighbours are numbered from 0 to 3, but labels are known of 3"
    with pytest.raises(DataError) as caught:
        count_votes(np.array([[0, 1]]), np.ones((1, 3)), LABELS, 1)
    assert str(caught.value) == "(1, 2) neighbours have (1, 3) similarities"
    with pytest.raises(DataError) as caught:
        count_votes(np.array([[0]]), np.array([[np.nan]]), LABELS, 1)
    assert str(caught.value) == "the similarities hold values that are not finite"
    with pytest.raises(ParameterError) as caught:
        count_votes(np.array([[0]]), np.ones((1, 1)), LABELS, 0)
    assert str(caught.value) == "k must be at least 1. Got 0 instead."


def test_damaged_labels_are_refused() -> None:
    damaged = LABELS.copy()
    damaged.indices[0] = 10**6
    with pytest.raises(ValueError, match="holds a label that does not exist"):
        count_votes(np.array([[0]]), np.ones((1, 1)), damaged, 1)
    damaged = LABELS.copy()
    damaged.indptr[1] = 10**6
    with pytest.raises(ValueError, match="its rows lie outside of its entries"):
        count_votes(np.array([[0]]), np.ones((1, 1)), damaged, 1)


def test_a_neighbour_counts_by_its_cosine():
    cosines = np.array([[0.9, 0.8, 0.5]], np.float32)
    np.testing.assert_allclose(weigh_votes(cosines, 0.1), [[1, np.exp(-1), np.exp(-4)]], rtol=1e-5)
    assert weigh_votes(cosines, 0).tolist() == [[1, 1, 1]]


def some_voters(sparse: bool) -> Voters:
    rng = np.random.default_rng(0)
    rows = rng.random((50, 6)).astype(np.float32)
    Y = sp.csr_matrix((rng.random((50, 9)) < 0.2).astype(np.float32))
    index = SparseIndex.of(sp.csr_matrix(rows)) if sparse else build_index(rows)
    return Voters(index, Y, 4, 0.3)


@pytest.mark.parametrize("sparse", [True, False])
def test_voters_come_back_from_files(sparse: bool) -> None:
    voters, files = some_voters(sparse), Files()
    voters.add_to_files(files)
    Voters.describe(files, "dim").check(files, {"n_labels": 9})
    again = Voters.from_files(files, 9)
    queries = np.eye(6, dtype=np.float32)
    top, back = (
        v.rank_labels(v.find(sp.csr_matrix(queries) if sparse else queries), 5)
        for v in (voters, again)
    )
    np.testing.assert_array_equal(top.labels, back.labels)
    np.testing.assert_array_equal(top.scores, back.scores)
    with pytest.raises(ValueError, match=r"voters\.labels\.columns must hold .* up to 2"):
        Voters.from_files(files, 3)


def test_labels_without_votes_follow_by_frequency_or_stay_out() -> None:
    voters = some_voters(sparse=False)
    query = np.ones((1, 6), np.float32)
    near = voters.find(query)
    bare, filled = voters.rank_labels(near, 9, fill=False), voters.rank_labels(near, 9)
    n = int((bare.labels != NO_LABEL).sum())
    assert 0 < n < 9
    rest = [label for label in voters.frequent.tolist() if label not in bare.labels[0, :n]]
    assert filled.labels[0].tolist() == [*bare.labels[0, :n].tolist(), *rest]
    assert (filled.scores[0, n:] == 0).all()


def test_choosing_tries_all_pairs_or_alternates() -> None:
    """The score is the share of the first label, which is highest for one neighbour."""
    rng = np.random.default_rng(0)
    similarities = -np.sort(-rng.random((30, 8)), axis=1).astype(np.float32)
    ids = rng.integers(0, 50, (30, 8)).astype(np.int32)
    Y = sp.csr_matrix(np.eye(50, dtype=np.float32))
    tried = []

    def score(top: TopK) -> float:
        tried.append(top)
        return float(top.scores[:, 0].mean())

    best = choose_voting(ids, similarities, Y, score, numbers=[5, 1, 3], temperatures=[0.1, 0.2])
    assert best == (1, 0.1, 1.0)
    assert len(tried) == 6
    start = best._replace(n_neighbours=5, temperature=0.2)
    alternated = choose_voting(
        ids,
        similarities,
        Y,
        score,
        numbers=[5, 1, 3],
        temperatures=[0.1, 0.2],
        alternate_from=start,
    )
    assert alternated == best
    assert len(tried) == 6 + 2 * 5


def test_documents_stand_on_both_sides_of_a_label():
    """The nearest that carry it, and of the nearest of all those that do not."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    Y = sp.csr_matrix((np.arange(40) % 8 == 3)[:, None].astype(np.float32))
    voters = Voters(build_index(vectors), Y, 10, 0.1)
    cosines = vectors @ vectors[0]
    pro, contra = voters.find_sides(vectors[:1], 0)
    carriers = np.arange(3, 40, 8)
    expected = [i for i in carriers[np.argsort(-cosines[carriers])] if cosines[i] > 0]
    assert pro == pytest.approx(vectors[expected], abs=0.02)
    nearest = [i for i in np.argsort(-cosines)[:10] if i % 8 != 3][:5]
    assert contra == pytest.approx(vectors[nearest], abs=0.02)
    assert len(voters.find_sides(vectors[:1] * 0, 0)[0]) == 0
