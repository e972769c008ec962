from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from bench.made_up import make_up
from bench.methods import METHODS, choose
from bench.rows import Rows, find_rows, to_rows
from bench.scaling import growth_table
from bench.table import COLUMNS, best_peer, markdown, ratio, ratio_table, results_table
from bench.trial import _median, run_all
from longtail.compare.process import shorten
from longtail.data.dataset import Dataset
from longtail.data.debian import load_debian
from longtail.peers import OURS, Contender
from longtail.peers.measure import pad


def result(name: str, value: float, *, ours: bool = False) -> dict:
    return {"method": name, "ours": ours} | {column.key: value for column in COLUMNS}


def column(key: str):
    return next(column for column in COLUMNS if column.key == key)


def few_rows() -> Rows:
    X = sp.csr_matrix(np.array([[3, 4, 0], [0, 0, 0], [0, 0, 2]], dtype=np.float32))
    Y = sp.csr_matrix(np.eye(3, dtype=np.float32))
    data = Dataset(Y, ["a", "b", "c"], X=X)
    return to_rows("few", data, data)


def test_made_up_documents_do_not_depend_on_the_number_of_labels() -> None:
    few = make_up(n_documents=300, n_labels=100, n_features=2_000, n_test=50)
    many = make_up(n_documents=300, n_labels=10_000, n_features=2_000, n_test=50)
    assert (few.X != many.X).nnz == 0
    assert few.Y.shape == (300, 100)
    assert many.test_Y.shape == (50, 10_000)
    coarse = sp.csr_matrix(many.Y)
    coarse = sp.csr_matrix(
        (coarse.data, coarse.indices // 100, coarse.indptr), shape=few.Y.shape, copy=True
    )
    coarse.sum_duplicates()
    coarse.data[:] = 1
    assert (coarse != few.Y).nnz == 0


def test_made_up_data_is_seeded_and_well_formed() -> None:
    one, two, other = (
        make_up(n_documents=200, n_labels=1_000, n_features=500, n_test=20, seed=seed)
        for seed in (1, 1, 2)
    )
    assert (one.X != two.X).nnz == 0
    assert (one.Y != two.Y).nnz == 0
    assert (one.X != other.X).nnz > 0
    assert one.X.dtype == one.Y.dtype == np.float32
    lengths = np.sqrt(np.asarray(one.X.multiply(one.X).sum(axis=1)).ravel())
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    assert set(one.Y.data) == {1.0}


def test_made_up_labels_have_a_long_tail_and_can_be_learned() -> None:
    made = make_up(n_documents=4_000, n_labels=100, n_test=500)
    counts = np.sort(np.bincount(made.Y.indices, minlength=100))[::-1]
    assert counts[:20].sum() > counts[20:].sum()
    # the sum of a label's documents is enough to beat always answering the commonest label
    centres = sp.csr_matrix(made.Y.T @ made.X)
    guess = np.asarray((made.test_X @ centres.T).todense() / np.maximum(counts.max(), 1)).argmax(1)
    hits = np.asarray(made.test_Y[np.arange(500), guess]).mean()
    commonest = made.test_Y[:, np.bincount(made.Y.indices).argmax()].mean()
    assert hits > commonest


def test_rows_have_unit_length_and_empty_ones_stay() -> None:
    rows = few_rows()
    np.testing.assert_allclose(rows.X.toarray(), [[0.6, 0.8, 0], [0, 0, 0], [0, 0, 1]], rtol=1e-6)
    assert rows.X.indptr.dtype == rows.X.indices.dtype == np.int32
    assert rows.n_empty == 1
    assert rows.describe() == {"train": 3, "test": 3, "features": 3, "labels": 3, "empty": 1}


def test_runners_never_get_the_test_labels(tmp_path: Path) -> None:
    few_rows().write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "test_X.npz",
        "train_X.npz",
        "train_Y.npz",
    ]


def test_texts_become_rows_with_the_same_features() -> None:
    Y = sp.csr_matrix(np.eye(2, dtype=np.float32))
    train = Dataset(Y, ["a", "b"], texts=["red wine", "dark beer"])
    test = Dataset(Y, ["a", "b"], texts=["red beer", "unseen"])
    rows = to_rows("drinks", train, test)
    assert rows.test.X is not None
    assert rows.X.shape[1] == rows.test.X.shape[1]
    assert np.diff(rows.test.X.indptr)[1] == 0


def test_the_bundled_set_keeps_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    few = load_debian(40)  # at random, packages of one source would be in both splits
    monkeypatch.setattr("bench.rows.load_debian", lambda: few)
    (rows,) = find_rows(None, ["bundled"])
    assert (rows.test.Y != few.test.align(rows.train.label_names).Y).nnz == 0
    assert rows.describe()["train"] == 40


def test_best_peer_follows_the_direction_of_the_measure() -> None:
    peers = [result("low", 1.0), result("high", 2.0)]
    assert best_peer(peers, column("P@1"))["method"] == "high"
    assert best_peer(peers, column("train_seconds"))["method"] == "low"
    assert best_peer(peers, column("documents_per_second"))["method"] == "high"


def test_ratio_table_divides_ours_by_the_best_peer() -> None:
    table = ratio_table([result("mine", 3.0, ours=True), result("a", 2.0), result("b", 4.0)])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[0] == ["measure", "better", "mine", "best peer"]
    assert ["P@1", "higher", "0.75", "b"] in lines
    assert ["train s", "lower", "1.50", "a"] in lines


def test_ratio_table_leaves_out_failed_peers() -> None:
    failed = {"method": "a", "ours": False, "error": "no"}
    assert ratio_table([result("mine", 1.0, ours=True), failed]).startswith("No ratios")
    assert ratio(1.0, 0.0) == float("inf")


def test_results_table_shows_the_error_of_a_failed_method() -> None:
    failed = {"method": "a", "ours": False, "error": "refuses empty rows"}
    table = results_table([result("mine", 1234.5, ours=True), failed])
    assert "1,234.50" in table
    assert table.endswith("- a failed: refuses empty rows")


def test_markdown_lines_have_the_same_width() -> None:
    table = markdown(["name", "n"], [["long name", "1"], ["x", "1,000"]])
    assert len({len(line) for line in table.splitlines()}) == 1


def test_median_of_repeats_ignores_failed_ones() -> None:
    runs = [result("a", value) | {"setting": {}} for value in (5.0, 1.0, 2.0)]
    merged = _median([*runs, {"method": "a", "ours": False, "error": "no"}])
    assert merged["train_seconds"] == 2.0
    assert merged["runs"] == 3
    assert merged["method"] == "a"


def test_failed_method_is_reported_and_tried_without_empty_rows(tmp_path: Path) -> None:
    broken = Contender("broken", OURS, "bench.no_such_script")
    (results,) = run_all([broken], few_rows(), tmp_path, threads=1, repeat=1, timeout=60)
    assert [r["method"] for r in results] == ["broken", "broken (without empty rows)"]
    assert all("No module named bench.no_such_script" in r["error"] for r in results)
    assert list(tmp_path.iterdir()) == []


def test_shorten_keeps_the_telling_line() -> None:
    output = "start\nValueError: row 3 is empty\nnote: run with more\n"
    assert shorten(output) == "ValueError: row 3 is empty"
    assert shorten("") == "no message"
    assert len(shorten("error " + "x" * 500)) == 160


def test_choose_by_peer_and_by_name() -> None:
    assert choose(None) == METHODS
    assert {m.package for m in choose(["omikuji"])} == {OURS, "omikuji"}
    assert [m.name for m in choose(None, ["napkinxc ova"])] == ["napkinxc ova"]
    with pytest.raises(SystemExit, match="no such peer: pecs"):
        choose(["pecs"])
    with pytest.raises(SystemExit, match="no such method: x"):
        choose(None, ["x"])


def test_pad_fills_short_rows() -> None:
    labels, scores = pad([[(7, 0.5)], []], 5)
    assert labels.tolist() == [[7, -1, -1, -1, -1], [-1] * 5]
    assert scores[0].tolist() == [0.5, 0, 0, 0, 0]


def test_growth_table_compares_with_the_size_before() -> None:
    keys = ("train_seconds", "train_cpu_seconds", "train_above_data_mb", "model_mb")
    keys += ("milliseconds_each", "single_p50_ms", "P@1")
    sizes = [{"labels": 10} | dict.fromkeys(keys, 2.0), {"labels": 100} | dict.fromkeys(keys, 3.0)]
    table = growth_table([*sizes, {"labels": 1000, "error": "no"}])
    assert "3.0 (x1.50)" in table
    assert "failed" in table.splitlines()[-1]
