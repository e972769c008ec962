"""The table of candidates: a row for each way to find them, with figures that make sense."""

from command_line import write_texts

from bench import candidates
from longtail.runtime.parallel import set_threads


def test_a_row_for_each_way(capsys, tmp_path):
    for name, seed in (("train", 0), ("test", 1)):
        write_texts(tmp_path / f"{name}.jsonl", 80, seed=seed)
    try:
        candidates.main([str(tmp_path), "--members", "linear,knn", "--documents", "70"])
    finally:
        set_threads(None)
    heading, _, *rows = capsys.readouterr().out.splitlines()
    columns = len(heading.split("|"))
    assert [row.split("|")[1].strip() for row in rows[:3]] == [
        "linear alone",
        "knn alone",
        "lists alone",
    ]
    assert len(rows) == 6
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == columns
        assert all(0 <= float(cell) <= 100 for cell in cells[2:8])
        assert float(cells[8]) > 0
