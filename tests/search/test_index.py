import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import longtail.search.index as module
from longtail.errors import DataError, MissingExtraError, ParameterError
from longtail.runtime.parallel import set_threads
from longtail.runtime.store import Files, read_folder, write_folder
from longtail.search.gpu import VectorsOnDevice
from longtail.search.index import Index, build_index


def clustered(n: int, dim: int, n_clusters: int = 20, seed: int = 0) -> np.ndarray:
    """Vectors around a few centres, of various lengths."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_clusters, dim))
    near = centres[rng.integers(n_clusters, size=n)] + 0.5 * rng.standard_normal((n, dim))
    return (near * rng.uniform(0.5, 2, (n, 1))).astype(np.float32)


def literal(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Every product in float64, rounded once; equal ones by the lower id."""
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(scores, ids, axis=1)


def assert_same(one: tuple, other: tuple) -> None:
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest):
    set_threads(request.param)
    yield request.param
    set_threads(None)


@pytest.fixture
def approximate() -> Index:
    return build_index(clustered(3000, 24), method="approximate", recall=0.95)


# -- what is found ------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 7, 32, 100])
@pytest.mark.usefixtures("threads")
def test_exact_search_finds_what_a_full_sort_finds(dim: int) -> None:
    vectors, queries = clustered(1000, dim), clustered(70, dim, seed=1)
    index = build_index(vectors)
    ids, scores = index.search(queries, 12)
    true_ids, true_scores = literal(index.vectors, queries, 12)
    np.testing.assert_array_equal(ids, true_ids)
    np.testing.assert_allclose(scores, true_scores, rtol=1e-6)
    assert ids.dtype == np.int32
    assert scores.dtype == np.float32


def test_equal_scores_are_ordered_by_the_lower_id() -> None:
    vectors = np.tile(np.eye(4, 8, dtype=np.float32), (50, 1))
    ids, scores = build_index(vectors).search(np.eye(1, 8, dtype=np.float32), 60)
    np.testing.assert_array_equal(ids[0, :50], np.arange(0, 200, 4))
    np.testing.assert_array_equal(ids[0, 50:], [1, 2, 3, 5, 6, 7, 9, 10, 11, 13])
    np.testing.assert_allclose(scores[0], [1] * 50 + [0] * 10, rtol=1e-6)
    assert len(set(scores[0].tolist())) == 2


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_a_query_of_zeros_finds_the_lowest_ids(method) -> None:
    vectors = clustered(200, 8)
    ids, scores = build_index(vectors, method=method).search(np.zeros((1, 8)), 3)
    np.testing.assert_array_equal(ids, [[0, 1, 2]])
    np.testing.assert_array_equal(scores, np.zeros((1, 3)))


def test_cosine_ignores_lengths_and_leaves_zeros() -> None:
    vectors = np.array([[2, 0], [0, 0], [3, 3], [0, 0.1]], np.float32)
    ids, scores = build_index(vectors, metric="cosine").search(np.array([[5, 0]]), 4)
    np.testing.assert_array_equal(ids, [[0, 2, 1, 3]])
    np.testing.assert_allclose(scores, [[1, 0.5**0.5, 0, 0]], rtol=1e-5)
    ids, _ = build_index(vectors, metric="inner").search(np.array([[5, 0]]), 4)
    np.testing.assert_array_equal(ids, [[2, 0, 1, 3]])


def test_more_than_there_are_returns_all() -> None:
    ids, scores = build_index(clustered(5, 4)).search(clustered(2, 4), 10)
    assert ids.shape == scores.shape == (2, 5)
    assert set(ids[0]) == set(range(5))


def test_no_queries_give_no_answers() -> None:
    ids, scores = build_index(clustered(9, 4)).search(np.empty((0, 4), np.float32), 3)
    assert ids.shape == scores.shape == (0, 3)


# -- the same, however it is asked ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "approximate"])
@pytest.mark.parametrize("metric", ["inner", "cosine"])
def test_a_batch_equals_one_by_one_bit_for_bit(method, metric) -> None:
    index = build_index(clustered(2000, 50), metric=metric, method=method, recall=0.9)
    queries = clustered(150, 50, seed=2)
    whole = index.search(queries, 9)
    for size in (1, 2, 3, 17):
        parts = [index.search(queries[at : at + size], 9) for at in range(0, 150, size)]
        assert_same(whole, tuple(np.concatenate(part) for part in zip(*parts, strict=True)))


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_threads_do_not_change_anything(monkeypatch: pytest.MonkeyPatch, method) -> None:
    monkeypatch.setattr(module, "WORTH_A_THREAD", 1)
    vectors, queries = clustered(2000, 20), clustered(30, 20, seed=3)
    found = []
    for n in (1, 2, 5):
        monkeypatch.setattr(module, "n_threads", lambda n=n: n)
        index = build_index(vectors, method=method)
        found.append((*index.search(queries, 5), *index.search(queries[:1], 5), index.lists.order))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_searches_side_by_side_do_not_disturb_each_other(approximate: Index) -> None:
    queries = clustered(40, 24, seed=4)
    expected = approximate.search(queries, 5)
    found: list = []
    workers = [
        threading.Thread(target=lambda: found.append(approximate.search(queries, 5)))
        for _ in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 6
    for one in found:
        assert_same(one, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_can_search(tmp_path: Path) -> None:
    script = tmp_path / "forked.py"
    script.write_text(
        "import os\n"
        "import numpy as np\n"
        "from longtail.search.index import build_index\n"
        "from longtail.runtime.parallel import set_threads\n"
        "set_threads(2)\n"
        "index = build_index(np.eye(300, 8, dtype=np.float32))\n"
        "index.search(np.eye(8, dtype=np.float32), 2)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    found, _ = index.search(np.eye(8, dtype=np.float32), 2)\n"
        "    os._exit(0 if (found[:, 0] == np.arange(8)).all() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", str(script)], check=True, timeout=100)


# -- approximate --------------------------------------------------------------------------------


def test_the_recall_wanted_is_reached_and_measured() -> None:
    vectors, queries = clustered(4000, 16, 60), clustered(400, 16, 60, seed=5)
    queries, others = queries[::2].copy(), queries[1::2].copy()
    index = build_index(vectors, method="approximate", queries=queries, recall=0.97)
    exact = build_index(vectors)
    recalls = []
    for asked in (queries, others):
        truth, found = exact.search(asked, 10)[0], index.search(asked, 10)[0]
        recalls.append((found[:, :, None] == truth[:, None, :]).any(axis=1).mean())
    assert index.recall == pytest.approx(recalls[0])
    assert 0.97 < index.recall < 1
    assert recalls[1] >= 0.97
    assert 1 <= index.n_probes < index.n_lists
    assert not index.exact


def test_queries_of_zeros_do_not_count_for_the_recall() -> None:
    vectors, queries = clustered(3000, 16, 60), clustered(100, 16, 60, seed=5)
    empty = np.zeros((100, 16), np.float32)
    probed = [
        build_index(vectors, method="approximate", queries=given).n_probes
        for given in (queries, np.vstack([queries, empty]))
    ]
    assert probed[0] == probed[1]
    assert build_index(vectors, method="approximate", queries=empty).recall >= 0.99


def test_a_higher_recall_probes_more_lists() -> None:
    probed = [
        build_index(clustered(3000, 16, 60), method="approximate", recall=recall).n_probes
        for recall in (0.5, 0.9, 1.0)
    ]
    assert probed[0] < probed[1] < probed[2]


def test_scores_of_an_approximate_search_are_those_of_an_exact_one(approximate: Index) -> None:
    queries = clustered(50, 24, seed=6)
    ids, scores = approximate.search(queries, 5)
    all_ids, all_scores = build_index(approximate.vectors).search(queries, 3000)
    for q in range(50):
        place = {label: at for at, label in enumerate(all_ids[q])}
        np.testing.assert_array_equal(scores[q], [all_scores[q, place[i]] for i in ids[q]])


def test_lists_with_too_few_vectors_are_not_the_end(approximate: Index) -> None:
    approximate.n_probes = 1
    ids, scores = approximate.search(clustered(3, 24, seed=7), 2000)
    assert all(len(set(row)) == 2000 for row in ids)
    assert np.isfinite(scores).all()


def test_size_decides_between_exact_and_approximate(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(4000, 16, 60)
    assert build_index(vectors).exact
    monkeypatch.setattr(module, "LARGEST_EXACT", 1000)
    assert not build_index(vectors).exact
    assert build_index(vectors, method="exact").exact


def test_where_lists_do_not_help_all_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_EXACT", 1000)
    shapeless = np.random.default_rng(0).standard_normal((500, 200)).astype(np.float32)
    index = build_index(shapeless)
    assert index.exact
    assert index.n_lists == 1


def test_equal_vectors_can_be_divided() -> None:
    index = build_index(np.ones((100, 4), np.float32), method="approximate")
    np.testing.assert_array_equal(index.search(np.ones((1, 4)), 3)[0], [[0, 1, 2]])


def test_the_same_seed_gives_the_same_lists() -> None:
    one, two, other = (
        build_index(clustered(1000, 8), method="approximate", seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.lists.order, two.lists.order)
    assert (one.n_probes, one.recall) == (two.n_probes, two.recall)
    assert not np.array_equal(one.lists.order, other.lists.order)


def test_what_an_index_says_of_itself(approximate: Index) -> None:
    approximate.n_probes, approximate.recall = 5, 0.9912
    n_lists = approximate.n_lists
    assert repr(approximate) == (
        f"Index(3,000 vectors of 24, inner, cpu: 5 of {n_lists} lists, recall@10 0.991)"
    )
    exact = build_index(clustered(5, 4), metric="cosine")
    assert repr(exact) == "Index(5 vectors of 4, cosine, cpu: exact)"


# -- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 64])
def test_torch_finds_the_very_same(
    monkeypatch: pytest.MonkeyPatch, spare: int, torch_device: str
) -> None:
    monkeypatch.setattr(module, "GPU_SPARE", spare)
    monkeypatch.setattr(module, "LARGEST_PRODUCT", 50_000)
    vectors, queries = clustered(2000, 30), clustered(60, 30, seed=9)
    queries[7] = 0  # more candidates than any width holds
    index = build_index(vectors)
    expected = index.search(queries, 5)
    index.to(torch_device)
    assert index._on_device is not None
    assert_same(index.search(queries, 5), expected)
    assert_same(index.search(queries[:1], 5), (expected[0][:1], expected[1][:1]))
    assert_same(index.search(queries, 2000), build_index(vectors).search(queries, 2000))


@pytest.mark.parametrize("metric", ["inner", "cosine"])
@pytest.mark.parametrize("n_probes", [1, 4, 30])
def test_torch_probes_the_very_same_lists(
    monkeypatch: pytest.MonkeyPatch, n_probes: int, metric, torch_device: str
) -> None:
    monkeypatch.setattr(module, "LARGEST_PRODUCT", 50_000)
    vectors, queries = clustered(2000, 30), clustered(60, 30, seed=9)
    vectors[100:140] = vectors[100]  # equal scores, for which room and order must be right
    queries[7], queries[8] = 0, vectors[100]
    index = build_index(vectors, metric=metric, method="approximate")
    index.n_probes = n_probes
    for k in (5, 50, 1500):  # 1500 are more than the lists hold
        index.to("cpu")
        expected = index.search(queries, k)
        index.to(torch_device)
        assert_same(index.search(queries, k), expected)


def test_torch_builds_the_very_same_lists(torch_device: str) -> None:
    vectors, queries = clustered(3000, 24), clustered(300, 24, seed=9)
    vectors[5:9] = vectors[5]
    one, other = (
        build_index(vectors, method="approximate", queries=queries, recall=0.9, device=device)
        for device in ("cpu", torch_device)
    )
    for field in ("start", "order"):
        np.testing.assert_array_equal(getattr(one.lists, field), getattr(other.lists, field))
    np.testing.assert_array_equal(one.centres, other.centres)
    assert (one.n_probes, one.recall) == (other.n_probes, other.recall)
    assert other.device == torch_device


@pytest.mark.parametrize("approximate", [False, True])
def test_a_gpu_without_memory_leaves_the_search_to_a_cpu(monkeypatch, approximate: bool) -> None:
    torch = pytest.importorskip("torch")
    method = "approximate" if approximate else "exact"
    index = build_index(clustered(500, 8), method=method)
    queries = clustered(20, 8, seed=1)
    expected = index.search(queries, 5)

    def fail(*args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    index.to("cpu:0")
    monkeypatch.setattr(VectorsOnDevice, "candidates", fail)
    assert_same(index.search(queries, 5), expected)
    assert index.device == "cpu"
    monkeypatch.setattr(module, "WORTH_A_GPU", 1)
    monkeypatch.setattr(module, "gpu_is_there", lambda: True)
    monkeypatch.setattr(module, "copy_to", fail)
    assert index.for_batch(20).device == "cpu"
    assert_same(index.search(queries, 5), expected)


def test_other_errors_of_torch_are_not_hidden(monkeypatch) -> None:
    pytest.importorskip("torch")
    index = build_index(clustered(500, 8), device="cpu:0")

    def fail(*args):
        raise RuntimeError("something else")

    monkeypatch.setattr(VectorsOnDevice, "candidates", fail)
    with pytest.raises(RuntimeError, match="something else"):
        index.search(clustered(20, 8), 5)


def test_only_large_batches_look_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(module, "gpu_is_there", lambda: asked.append(1) or False)
    index = build_index(clustered(500, 8))
    index.for_batch(module.WORTH_A_GPU // 4000 - 1)
    assert not asked
    assert index.for_batch(module.WORTH_A_GPU // 4000 + 1).device == "cpu"
    assert asked


def test_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError) as caught:
        build_index(clustered(9, 4), device="cuda")
    assert str(caught.value) == "There is no GPU to search on. Got the device 'cuda'; use 'cpu'."


def test_missing_torch_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError) as caught:
        build_index(clustered(9, 4), device="cuda")
    assert str(caught.value) == (
        "Searching on the device 'cuda' needs torch, which is not installed; "
        "install it with: pip install '.[deep]'"
        ", in the folder with longtail's source"
    )


def test_torch_is_not_imported_on_a_cpu() -> None:
    script = (
        "import sys, numpy; from longtail.search.index import build_index; "
        "build_index(numpy.eye(300, 8), method='approximate').search(numpy.eye(8), 2); "
        "print([name for name in ('torch', 'faiss') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "[]\n"


# -- saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_saved_and_loaded_it_finds_the_same(tmp_path: Path, method) -> None:
    index = build_index(clustered(1500, 10), metric="cosine", method=method, recall=0.9)
    files = Files(config={"model": "test"})
    index.add_to_files(files, "neighbours")
    write_folder(tmp_path / "model", files)
    again = Index.from_files(read_folder(tmp_path / "model"), "neighbours")
    queries = clustered(20, 10, seed=10)
    assert_same(again.search(queries, 7), index.search(queries, 7))
    assert repr(again) == repr(index)
    assert (again.recall, again.n_probes) == (index.recall, index.n_probes)


def _saved(index: Index) -> Files:
    files = Files()
    index.add_to_files(files)
    copies = {name: array.copy() for name, array in files.arrays.items()}
    return Files(json.loads(json.dumps(files.config)), copies)


def _set(name: str, value):
    def change(files: Files) -> None:
        files.config["index"][name] = value

    return change


def _at(name: str, place, value):
    def change(files: Files) -> None:
        files.arrays[f"index.{name}"][place] = value

    return change


def _replace(name: str, function):
    def change(files: Files) -> None:
        files.arrays[f"index.{name}"] = function(files.arrays[f"index.{name}"])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _set("metric", "euclid"),
            "metric must be 'inner' or 'cosine'. Got 'euclid' instead",
        ),
        (_set("n_probes", 0), "index.n_probes must be at least 1. Got 0 instead"),
        (_set("n_probes", 10**9), "index.n_probes must be at most"),
        (_set("n_probes", 1.5), "index.n_probes must be a whole number. Got 1.5 instead"),
        (_set("n_lists", True), "index.n_lists must be a whole number. Got True instead"),
        (_set("n_lists", 99), "has .* for index.n_lists, which is 99 elsewhere"),
        (_set("recall", 2), "index.recall must be from 0 to 1. Got 2 instead"),
        (_set("recall", "1"), "index.recall must be a number. Got '1' instead"),
        (_set("recall_at", None), "index.recall_at must be a whole number. Got None instead"),
        (_at("vectors.codes", (3, 1), -128), "vectors.codes must hold numbers from -127 to 127"),
        (_at("vectors.scale", 3, np.nan), "index.vectors.scale must hold numbers from 0 to"),
        (_at("vectors.scale", 3, 1e20), "index.vectors.scale must hold numbers from 0 to"),
        (_at("vectors.scale", 3, -1), "index.vectors.scale must hold numbers from 0 to"),
        (_at("centres", (0, 0), np.inf), "index.centres must hold numbers"),
        (_replace("vectors.codes", lambda a: a.astype(np.int16)), "codes must be of type int8"),
        (_replace("vectors.codes", lambda a: a[:-1]), "has 299 for n, which is 300 elsewhere"),
        (
            _replace("vectors.codes", lambda a: a[:, 1:]),
            "vectors are 31 wide, which does not suit 6 columns",
        ),
        (_set("dim", 7), "has 6 for dim, which is 7 elsewhere"),
        (_replace("centres", lambda a: a[:, 1:]), "has 5 for dim, which is 6 elsewhere"),
        (_replace("start", lambda a: a.astype(np.int32)), "start must be of type int64"),
        (_replace("start", lambda a: a[:-1]), "for index.n_lists, which is"),
        (_at("start", 0, -5), "start must hold rising whole numbers from 0 to n"),
        (_at("start", 3, 10**12), "start must hold rising whole numbers from 0 to n"),
        (_at("order", 0, -1), "order must hold all whole numbers below n, each once"),
        (_at("order", 0, 10**6), "order must hold all whole numbers below n, each once"),
        (_replace("order", np.zeros_like), "order must hold all whole numbers below n, each once"),
        (_replace("order", lambda a: a.astype(np.int64)), "order must be of type int32"),
        (lambda files: files.arrays.pop("index.order"), "index.order is missing"),
    ],
)
def test_damaged_parts_are_refused(change, message: str) -> None:
    files = _saved(build_index(clustered(300, 6), method="approximate", recall=0.9))
    Index.describe(files, "index", "n", "dim").check(files, {})
    change(files)
    with pytest.raises(ValueError, match=message):
        Index.describe(files, "index", "n", "dim").check(files, {})


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metric": "l2"},
            "The 'metric' of an index must be 'inner' or 'cosine'. Got 'l2' instead.",
        ),
        (
            {"method": "hnsw"},
            "The 'method' of an index must be 'auto' or 'exact' or 'approximate'. "
            "Got 'hnsw' instead.",
        ),
        ({"recall": 0}, "The 'recall' of an index must be in (0, 1]. Got 0 instead."),
        ({"recall_at": 0}, "The 'recall_at' of an index must be at least 1. Got 0 instead."),
        ({"n_lists": 1}, "The 'n_lists' of an index must be at least 2. Got 1 instead."),
    ],
)
def test_a_wrong_parameter_is_named(settings, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        build_index(clustered(9, 4), **settings)
    assert str(caught.value) == message


def test_vectors_that_cannot_be_searched_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        build_index(np.empty((0, 4)))
    assert str(caught.value) == "there is nothing to search in vectors of shape (0, 4)"
    with pytest.raises(DataError) as caught:
        build_index(np.ones(4))
    assert str(caught.value) == "the vectors must be a matrix; got an array of shape (4,)"
    with pytest.raises(DataError, match="the vectors hold values that are not finite"):
        build_index(np.array([[1, np.nan]]))


def test_queries_that_cannot_be_answered_are_refused() -> None:
    index = build_index(clustered(9, 4))
    with pytest.raises(ParameterError) as caught:
        index.search(clustered(1, 4), 0)
    assert str(caught.value) == "k must be at least 1. Got 0 instead."
    with pytest.raises(DataError) as caught:
        index.search(clustered(1, 5), 1)
    assert str(caught.value) == ("the queries have 5 dimensions, but the index holds vectors of 4")
    with pytest.raises(DataError, match="the queries hold values that are not finite"):
        index.search(np.full((1, 4), 1e300), 1)
    with pytest.raises(DataError) as caught:
        build_index(clustered(300, 4), method="approximate", queries=clustered(5, 3))
    assert str(caught.value) == "the queries have 3 dimensions, but the vectors 4"
