"""What a fusion makes of its time, as a table."""

import json
import os

from planted import planted_texts

from bench import budgets
from bench.budgets import budget_table, divide_cores, main, read_peers, read_results
from longtail.data import Splits, write_dataset

PAGE = """
| method | one (12 labels) | two (5 labels) |
|---|---|---|
| `fusion` | **90.0** / 80.0 / 70.0 | 1.0 / 1.0 / 1.0 |
| peer a | 50.1 / 40.2 / 30.3 | – |
| peer b | **51.1** / 39.2 / 30.4 | 2.0 / 2.0 / 2.0 |

| method | one (12 labels) | two (5 labels) |
|---|---|---|
| peer a | 20.1 / 20.2 / 20.3 | – |

| data set | other |
|---|---|
| peer | 99.9 / 99.9 / 99.9 |
"""


def result(name, budget, seconds, **more):
    report = {"gain": 0.5, "n_bytes": 1}
    found = {"set": name, "budget": budget, "seconds": seconds, "n_bytes": 12_340_000}
    found |= {f"{metric}@{k}": 10.0 * k for metric in ("P", "PSP") for k in (1, 3, 5)}
    found |= {"documents_per_second": 1234.5, "milliseconds": 1.23, "ECE": 0.0123}
    return found | {"members": {"linear": report}, "dropped": {"glas": report}} | more


def test_the_best_peer_of_each_metric_is_read_from_the_page():
    peers = read_peers(PAGE)
    assert peers["one"] == {
        **{"P@1": 51.1, "P@3": 40.2, "P@5": 30.4},
        **{"PSP@1": 20.1, "PSP@3": 20.2, "PSP@5": 20.3},
    }
    assert peers["two"]["P@5"] == 2.0
    real = read_peers(budgets.RESULTS.read_text())
    assert {"bibtex", "stackexchange", "yso", "debian"} <= set(real)


def test_a_row_a_run_in_the_order_of_budgets_and_the_peer_below():
    found = [result("one", "10m", 300.0), result("one", "1m", 57.0), result("two", "1m", 30.0)]
    table = budget_table(found, read_peers(PAGE))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert [row[:3] for row in rows[2:]] == [
        ["one", "1m", "57 s, 95 %"],
        ["one", "10m", "300 s, 50 %"],
        ["one", "best peer", ""],
        ["two", "1m", "30 s, 50 %"],
        ["two", "best peer", ""],
    ]
    assert rows[2][3] == "10.00 / 30.00 / 50.00"
    assert rows[2][5:] == ["0.012", "12.3 MB", "1,234", "1.2", "linear +0.50", "glas +0.50"]
    assert rows[4][3] == "51.1 / 40.2 / 30.4"


def test_a_line_that_was_cut_and_a_run_that_failed_are_none(tmp_path):
    path = tmp_path / "runs.jsonl"
    assert read_results(path) == []
    good = json.dumps(result("one", "1m", 57.0))
    path.write_text("\n".join([good, json.dumps({"set": "two", "error": "no"}), good[:40]]))
    assert len(read_results(path)) == 1


def test_jobs_have_cores_of_their_own():
    n = len(os.sched_getaffinity(0))
    assert len(divide_cores(1, None)[0]) == n
    assert [len(cores) for cores in divide_cores(3, 1)] == [1, 1, 1]
    assert divide_cores(1, 1000) == divide_cores(1, None)


def test_a_run_is_trained_measured_and_not_repeated(tmp_path, capsys):
    data, out = tmp_path / "planted", tmp_path / "runs.jsonl"
    write_dataset(Splits(planted_texts(), planted_texts()), data)
    given = [str(data), "--budgets", "20s", "--out", str(out)]
    main([*given, "--", "--set", "members=linear,knn"])
    (found,) = read_results(out)
    assert set(found["members"]) == {"linear", "knn"}
    assert found["P@1"] > 50
    assert found["n_bytes"] > 1000
    assert found["documents_per_second"] > 0
    assert "longtail train" in (tmp_path / "runs" / "planted-20s.log").read_text()
    assert "| planted " in capsys.readouterr().out
    main(given)
    assert len(out.read_text().splitlines()) == 1
    main(["--print", "--out", str(tmp_path / "none.jsonl")])
    assert capsys.readouterr().out.endswith("There are no results yet.\n")
