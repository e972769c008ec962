import json
import shutil

import pytest
from command_line import write_texts
from served import train_planted

from bench.serve import HEADINGS, main


def lines_of(path, seed):
    return write_texts(path, 50, seed).read_text().splitlines()


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk, the load generator, is missing")
def test_a_server_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what is made stays there
    folder = train_planted(tmp_path / "planted")
    data = tmp_path / "data"
    data.mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        rows = [json.loads(line) for line in lines_of(tmp_path / split, seed)]
        for name, lines in (
            ("texts", [row["text"] for row in rows]),
            ("labels", [" ".join(row["labels"]) for row in rows]),
        ):
            (data / f"{split}_{name}.txt").write_text("\n".join(lines) + "\n")
    options = ["--clients", "2", "--seconds", "1", "--soak", "2", "--workers", "1"]
    main([str(data), str(folder), *options])
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert all(heading in lines[0] for heading in HEADINGS)
    for line in lines[2:4]:
        assert line.split("|")[-2].strip() == "0"  # none failed
        assert float(line.split("|")[2].replace(",", "")) > 0
    assert "planted: ready after" in out
    assert "MiB a million requests" in out
