import argparse
import json

import numpy as np
import pytest

from bench.index_latency import HEADINGS, main, make_up, measure, recall_of
from longtail.runtime.parallel import set_threads


@pytest.fixture(autouse=True)
def threads_as_before():
    yield
    set_threads(None)


def test_made_up_vectors_are_seeded_and_of_unit_length() -> None:
    one, two = (make_up(400, 16, 20, spread=False, seed=1) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])
    assert one[0].shape == (400, 16)
    assert one[1].shape == (20, 16)
    for rows in one:
        assert rows.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_recall_is_the_share_of_the_true_ones_found() -> None:
    truth = np.array([[1, 2], [3, 4]])
    assert recall_of(np.array([[2, 1], [4, 9]]), truth) == 0.75


def test_every_method_gets_a_full_row() -> None:
    args = argparse.Namespace(
        one="800x16", queries=30, recall=0.9, threads=1, spread=False, faiss=False, device="cpu"
    )
    rows = measure(args)
    assert [row[1] for row in rows] == ["exact", "approximate", "label index", "numpy product"]
    assert all(len(row) == len(HEADINGS) for row in rows)
    assert float(rows[0][3]) == 1  # of what int8 vectors say, which numpy's product differs from
    assert all(float(row[3]) > 0.8 for row in rows)


def test_one_size_prints_json_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["index_latency", "--one", "500x8", "--queries", "10", "--threads", "1"]
    monkeypatch.setattr("sys.argv", command)
    main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["500 × 8"] * 4
