"""README's results table, from the results of comparisons."""

import json
from dataclasses import replace

from made_up_comparison import LINEAR, made_up_run, make_split, results_of

from bench.readme_table import main, method_table, readme_table
from longtail.compare.run import Failure
from longtail.peers import OURS, Contender


def results(name):
    """Return results in which linear is best, a peer second, and fusion has failed."""
    split = make_split(300)
    failed = Failure(Contender("fusion", OURS, "x", LINEAR), "1", 0, "out of memory")
    peers = [
        replace(made_up_run(name, split, wrong), contender=Contender(name, "omikuji", "x"))
        for name, wrong in (("omikuji parabel", 0.7), ("omikuji bonsai", 0.4))
    ]
    knn = made_up_run("knn", split, 0.0)
    found = results_of(failed, made_up_run("linear", split, 0.1), knn, *peers, split=split)
    found["data"]["name"] = name
    return found


def read_cells(table):
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def test_a_row_a_data_set_and_the_best_of_each_cut_in_bold():
    table = readme_table([results("one"), results("two")])
    headings, _, one, two = read_cells(table)
    assert headings == ["data set", "documents", "labels", "`fusion`", "`linear`", "best peer"]
    assert one[:4] == ["one", "225 / 75", "12", "–"]
    assert two[0] == "two"
    first = results("one")["methods"][1]["metrics"]["P@1"]["value"]
    assert one[4].startswith(f"**{first:.1f}** / **")  # knn is better, but has no column
    assert one[5].endswith("(omikuji bonsai)")
    assert "**" not in one[5]
    assert "- one: fusion: out of memory" in table
    assert "- one: `c`" in table


def test_every_method_with_what_it_reaches_and_costs():
    found = results("one")
    headings, _, *rows = read_cells(method_table([found]))
    assert headings[:8] == ["data set", "method", "P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5"]
    assert [row[1] for row in rows] == ["linear", "knn", "omikuji parabel", "omikuji bonsai"]
    linear = dict(zip(headings, rows[0], strict=True))
    assert linear["P@1"] == f"{found['methods'][1]['metrics']['P@1']['value']:.2f}"
    assert linear["model MB"] == f"{found['methods'][1]['measured']['model_mb']:.1f}"


def test_what_is_there_is_printed_without_running(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "results.json").write_text(json.dumps(results("one")))
    main([str(tmp_path / "x" / "one"), "--out", str(tmp_path), "--print", "--leave-out", "debian"])
    assert "| one " in capsys.readouterr().out
    main(["--out", str(tmp_path), "--print", "--", "--budget", "1m"])
    assert capsys.readouterr().out == "There are no results yet.\n"
