import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.runtime.quantized import QuantizedRows
from longtail.search.index import build_index
from longtail.search.kernels import (
    NOTHING,
    Searched,
    largest_query_value,
    new_best,
    offer,
    round_query,
    search,
    slack_of,
    sort_best,
    to_unit,
)


def literal(rows: QuantizedRows, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Every product in float64, rounded once; equal ones by the lower id."""
    codes = rows.codes[:, : queries.shape[1]].astype(np.float64)
    scores = (queries.astype(np.float64) @ codes.T * rows.scale).astype(np.float32)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(scores, ids, axis=1)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 600),
    dim=st.integers(1, 40),
    k=st.integers(1, 12),
    low=st.integers(-44, 0),
    high=st.integers(0, 14),
)
@settings(max_examples=150, deadline=None)
def test_no_rounding_ever_hides_a_better_vector(seed, n, dim, k, low, high) -> None:
    rng = np.random.default_rng(seed)
    # Whole numbers times powers of two: products are exact, many are equal, quantization is coarse.
    sizes = 2.0 ** rng.integers(3 * low, 3 * high + 1, n + 3)
    rows = (rng.integers(-3, 4, (n + 3, dim)) * sizes[:, None]).astype(np.float32)
    vectors, queries = rows[:n].copy(), rows[n:].copy()
    ids, scores = build_index(vectors).search(queries, k)
    true_ids, true_scores = literal(QuantizedRows.of(vectors), queries, k)
    np.testing.assert_array_equal(scores, true_scores)
    np.testing.assert_array_equal(ids, true_ids)


@pytest.mark.parametrize("dim", [1, 40, 513])
def test_slack_bounds_every_product(dim: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((400, dim)).astype(np.float32)
    queries = to_unit(rng.standard_normal((400, dim)).astype(np.float32))
    rows = QuantizedRows.of(vectors)
    rounded = np.zeros((400, dim), np.int16)
    scales = [round_query(query, own).scale for query, own in zip(queries, rounded, strict=True)]
    codes = rows.codes[:, :dim].astype(np.int64)
    near = (codes * rounded).sum(axis=1) * rows.scale * scales
    products = (codes * queries.astype(np.float64)).sum(axis=1) * rows.scale
    slack = slack_of(dim) * rows.scale  # for queries of length 1
    assert (np.abs(products - near) <= slack).all()
    assert (slack < 0.02 * np.linalg.norm(vectors, axis=1)).all()


@pytest.mark.parametrize("dim", [512, 1024, 5000])
def test_the_largest_product_fits_32_bits(dim: int) -> None:
    vectors = np.full((3, dim), [[1.0], [-1.0], [0.5]], np.float32)
    ids, scores = build_index(vectors).search(np.full((2, dim), [[7.0], [-7.0]]), 3)
    np.testing.assert_array_equal(ids, [[0, 2, 1], [1, 2, 0]])
    expected = np.outer([1, 1], [7 * dim, 3.5 * dim, -7 * dim]) * [[1, 1, 1], [1, -1, 1]]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert largest_query_value(dim) * 127 * dim < 2**31


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(-3, 3)), max_size=50), st.integers(1, 8))
@settings(deadline=None)
def test_the_heap_keeps_the_best_with_lower_ids_first(offers, k: int) -> None:
    best = new_best(k)
    for new, score in offers:
        offer(best, np.int32(new), np.float32(score))
    sort_best(best)
    expected = sorted(offers, key=lambda pair: (-pair[1], pair[0]))[:k]
    found = list(zip(best.ids.tolist(), best.scores.tolist(), strict=True))
    assert found[: len(expected)] == [(new, float(score)) for new, score in expected]
    assert all(new == NOTHING for new, _ in found[len(expected) :])


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_pieces_hold_each_vector_once(method) -> None:
    rng = np.random.default_rng(1)
    index = build_index(rng.standard_normal((700, 6)), method=method, recall=0.8)
    searched = Searched(index.rows, index.lists)
    query = rng.standard_normal((1, 6)).astype(np.float32)
    for k in (3, 500):
        whole, _ = search(searched, query, k, index.n_probes, 0, 1)
        parts = [search(searched, query, k, index.n_probes, piece, 5)[0] for piece in range(5)]
        found = np.concatenate(parts, axis=1)
        found = found[found != NOTHING]
        assert len(set(found)) == len(found)
        assert set(whole[0]) <= set(found)


def test_unit_rows() -> None:
    rows = to_unit(np.array([[3, 4], [0, 0]], np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]])
