"""The table of both devices; torch's CPU stands for the GPU."""

import pytest

pytest.importorskip("torch", reason="a GPU needs torch")

from bench import gpu_index


def test_the_answers_are_the_same_in_every_bit(capsys):
    gpu_index.main(["--size", "600x32", "--queries", "60", "--device", "cpu:0"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows[::2]] == ["exact", "approximate", "PCA"]
    assert [row[4] for row in rows] == ["", "1.0000"] * 3
