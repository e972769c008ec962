"""The index by PCA with re-ranking: what it finds, batches, saving, when it is chosen."""

import numpy as np
import pytest

import longtail.search.pca as module
from longtail.runtime.parallel import set_threads
from longtail.runtime.store import Files, read_folder, write_folder
from longtail.search.index import Index, build_index
from longtail.search.pca import (
    PCAIndex,
    build_label_index,
    describe_index,
    find_directions,
    open_index,
    pick,
    project,
)


def made_up(n, dim=64, rank=10, seed=0):
    """Return unit vectors that lie mostly along a few directions."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(np.random.default_rng(9).standard_normal((dim, dim)))[0]
    vectors = rng.standard_normal((n, dim)) * np.where(np.arange(dim) < rank, 1, 0.05) @ directions
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def index(monkeypatch):
    monkeypatch.setattr(module, "SMALLEST", 1)
    return build_label_index(made_up(3000), made_up(400, seed=1))


def test_it_finds_what_an_exact_search_finds(index):
    assert isinstance(index, PCAIndex)
    assert not index.exact
    assert index.basis.shape == (64, 16)
    queries = made_up(300, seed=2)
    ids, scores = index.search(queries, 10)
    true_ids, true_scores = build_index(index.vectors, method="exact").search(queries, 10)
    found = np.mean([np.isin(one, other).mean() for one, other in zip(true_ids, ids, strict=True)])
    assert found > 0.98
    assert index.recall >= 0.99
    same = ids == true_ids
    np.testing.assert_array_equal(scores[same], true_scores[same])
    assert (np.diff(scores, axis=1) <= 0).all()


def test_a_batch_gives_the_bits_of_one_by_one(index):
    queries = made_up(40, seed=2)
    ids, scores = index.search(queries, 7)
    for i in range(40):
        one_ids, one_scores = index.search(queries[i : i + 1], 7)
        assert np.array_equal(one_ids[0], ids[i])
        assert np.array_equal(one_scores[0], scores[i])


def test_more_than_the_recall_was_measured_at(index):
    ids, _ = index.search(made_up(3, seed=2), 2500)
    assert ids.shape == (3, 2500)
    assert all(len(set(row)) == 2500 for row in ids.tolist())


def test_fewer_candidates_than_are_wanted(index):
    index.n_candidates = 1
    ids, _ = index.search(made_up(3, seed=2), 7)
    assert all(len(set(row)) == 7 for row in ids.tolist())


def test_saved_and_opened_it_finds_the_same(index, tmp_path):
    files = Files(config={"model": "none"})
    index.add_to_files(files, "labels")
    write_folder(tmp_path / "folder", files)
    describe_index(files, "labels", "n", "dim").check(files, {})
    opened = open_index(read_folder(tmp_path / "folder"), "labels")
    assert repr(opened) == repr(index)
    queries = made_up(20, seed=2)
    for before, after in zip(index.search(queries, 5), opened.search(queries, 5), strict=True):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("n_candidates", [0, 3001, 2.5, "many"])
def test_a_number_of_candidates_that_cannot_be(index, n_candidates):
    files = Files()
    index.add_to_files(files, "labels")
    files.config["labels"]["n_candidates"] = n_candidates
    with pytest.raises(ValueError, match=r"labels\.n_candidates must be"):
        describe_index(files, "labels", "n", "dim").check(files, {})


@pytest.mark.parametrize(
    "basis",
    [np.ones((63, 16), np.float32), np.ones((64, 16)), np.full((64, 2), np.nan, np.float32)],
)
def test_a_basis_that_cannot_be(index, basis):
    files = Files()
    index.add_to_files(files, "labels")
    files.arrays["labels.basis"] = basis
    with pytest.raises(ValueError, match="basis"):
        describe_index(files, "labels", "n", "dim").check(files, {})


def test_few_vectors_are_read_whole():
    index = build_label_index(made_up(50), made_up(20, seed=1))
    assert type(index) is Index
    assert index.exact


def test_vectors_without_main_directions_are_read_whole(monkeypatch):
    monkeypatch.setattr(module, "SMALLEST", 1)
    vectors, queries = (made_up(n, rank=64, seed=seed) for n, seed in ((3000, 0), (400, 1)))
    assert build_label_index(vectors, queries).exact


def test_many_vectors_are_divided_into_lists_where_that_helps(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_EXACT", 1)
    monkeypatch.setattr("longtail.search.index.LARGEST_EXACT", 1)
    centres = made_up(40, rank=64)
    rng = np.random.default_rng(0)
    near = centres[rng.integers(40, size=4000)] + 0.02 * rng.standard_normal((4000, 64))
    index = build_label_index(near[:3600].astype(np.float32), near[3600:].astype(np.float32))
    assert index.n_lists > 1


def test_the_longest_directions_are_found():
    vectors = made_up(500, rank=4)
    basis = find_directions(vectors, vectors, 4)
    np.testing.assert_allclose(basis.T @ basis, np.eye(4), atol=1e-5)
    kept = project(vectors, basis)
    np.testing.assert_allclose(kept, vectors @ basis, atol=1e-5)
    assert (kept**2).sum(1).mean() > 0.9


@pytest.mark.parametrize("n", [10, 5000, 40_000])
@pytest.mark.parametrize("wanted", [1, 7, 300])
def test_the_highest_scores_are_picked(n, wanted):
    scores = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert sorted(pick(scores, wanted)) == sorted(np.argsort(-scores)[:wanted])


def test_the_highest_scores_are_picked_wherever_they_stand():
    scores = np.zeros(40_000, np.float32)
    scores[1:300:2] = np.arange(150) + 1  # none of them is among those that are probed first
    assert sorted(pick(scores, 100)) == list(range(101, 300, 2))
    assert len(pick(scores, 200)) == 40_000  # all that are equal to the last one


def test_a_query_of_zeros_finds_the_lowest_ids(index):
    ids, scores = index.search(np.zeros((1, 64), np.float32), 3)
    assert ids.tolist() == [[0, 1, 2]]
    assert scores.tolist() == [[0, 0, 0]]


def test_the_number_of_threads_changes_nothing(index):
    queries = made_up(9, seed=2)
    ids, scores = index.search(queries, 7)
    set_threads(1)
    try:
        one_ids, one_scores = index.search(queries, 7)
    finally:
        set_threads(None)
    assert np.array_equal(ids, one_ids)
    assert np.array_equal(scores, one_scores)


def test_torch_finds_the_very_same(index, torch_device):
    queries = made_up(50, seed=2)
    queries[7] = 0
    for k in (1, 7, 10, 25):
        index.to("cpu")
        expected = index.search(queries, k)
        index.to(torch_device)
        for one, other in zip(index.search(queries, k), expected, strict=True):
            assert np.array_equal(one, other)


def test_torch_builds_an_index_with_the_same_answers(monkeypatch, torch_device):
    """The directions may differ in their last bits, as BLAS adds in other orders."""
    monkeypatch.setattr(module, "SMALLEST", 1)
    vectors, trials, queries = (made_up(n, seed=i) for i, n in enumerate((3000, 400, 100)))
    one, other = (
        build_label_index(vectors, trials, device=device) for device in ("cpu", torch_device)
    )
    assert isinstance(other, PCAIndex)
    assert other.device == torch_device
    assert one.n_candidates == other.n_candidates
    assert np.mean(one.search(queries, 10)[0] == other.search(queries, 10)[0]) > 0.99


def test_a_gpu_without_memory_leaves_the_building_to_a_cpu(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(module, "SMALLEST", 1)

    def fail(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "multiply_transposed", fail)
    index = build_label_index(made_up(3000), made_up(400, seed=1), device="cpu:0")
    assert isinstance(index, PCAIndex)
    assert index.device == "cpu"


def test_ranks_are_those_of_the_projections(index, torch_device):
    queries = made_up(30, seed=3)
    wanted = np.random.default_rng(0).integers(3000, size=(30, 4)).astype(np.int32)
    scores = np.empty((30, 3000), np.float32)
    module.score_projected(index.projected, project(queries, index.basis), 0, 3000, scores)
    own = np.take_along_axis(scores, wanted, axis=1)
    expected = (scores[:, None, :] > own[:, :, None]).sum(axis=2)
    assert np.array_equal(index.rank(queries, wanted), expected)
    assert np.array_equal(index.to(torch_device).rank(queries, wanted), expected)


def test_the_way_that_reads_the_least_is_taken(monkeypatch):
    monkeypatch.setattr(module, "SMALLEST", 1)
    kept = {}
    for rank in (4, 60):
        vectors, queries = (made_up(3000, 512, rank, seed=seed) for seed in (0, 1))
        index = build_label_index(vectors, queries[:400])
        assert index.recall >= 0.99
        assert index.cost < 3000 * 512
        kept[rank] = index.basis.shape[1]
    assert kept[4] == 32
    assert kept[60] > 32


def test_few_queries_are_shared_by_threads_where_there_is_much_to_read(index, monkeypatch):
    queries = made_up(2, seed=2)
    expected = index.search(queries, 7)
    monkeypatch.setattr(module, "WORTH_A_THREAD", 1)
    set_threads(3)
    try:
        found = index.search(queries, 7)
    finally:
        set_threads(None)
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
