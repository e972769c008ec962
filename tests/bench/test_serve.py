import json

from command_line import write_texts
from served import train_planted

from bench.serve import HEADINGS, main


def lines_of(path, seed):
    return write_texts(path, 50, seed).read_text().splitlines()


def test_a_server_is_measured(tmp_path, capsys):
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
    main([str(folder), str(data), "--clients", "2", "--seconds", "0.4"])
    lines = capsys.readouterr().out.splitlines()
    assert all(heading in lines[2] for heading in HEADINGS)
    for line in lines[4:6]:
        assert line.split("|")[-2].strip() == "0"  # none failed
