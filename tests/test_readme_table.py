"""README's results table, from the results of comparisons."""

import json

from test_comparison import LINEAR, made_up_run, make_split, results_of

from bench.readme_table import main, readme_tables
from longtail.compare.run import Failure
from longtail.peers import OURS, Contender


def results(name):
    split = make_split(300)
    failed = Failure(Contender("text only", OURS, "x", LINEAR), "1", 0, "cannot read rows")
    found = results_of(
        made_up_run("good", split, 0.1), made_up_run("bad", split, 0.7), failed, split=split
    )
    found["data"]["name"] = name
    return found


def test_the_best_is_bold_and_a_failure_has_a_note():
    table = readme_tables([results("one"), results("two")])
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["method", "one (12 labels)", "two (12 labels)"]
    assert [row[0] for row in cells[2:5]] == ["`good`", "`bad`", "`text only`"]
    assert cells[2][1].startswith("**")
    assert "**" not in cells[3][1]
    assert cells[2][1].endswith("1.0 s · 10/s · 1.00 ms")
    assert cells[4][1:] == ["–", "–"]
    assert "- one: text only: cannot read rows" in table
    assert "ms" not in readme_tables([results("one")], times=False).partition("PSP")[0]


def test_what_is_there_is_printed_without_running(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "results.json").write_text(json.dumps(results("one")))
    main([str(tmp_path / "x" / "one"), "--out", str(tmp_path), "--print", "--leave-out", "debian"])
    assert "one (12 labels)" in capsys.readouterr().out
    main(["--out", str(tmp_path), "--print", "--", "--budget", "1m"])
    assert capsys.readouterr().out == "There are no results yet.\n"
