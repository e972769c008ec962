"""What the README shows is run here, as a reader would run it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from planted import planted_texts

README = (Path(__file__).parent.parent / "README.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^\$ (.*longtail .*?)(?:\s+#.*)?$", README, re.MULTILINE)


def write_lines(path: Path, seed: int) -> None:
    data = planted_texts(n=150, seed=seed)
    with path.open("w") as file:
        for i, text in enumerate(data.texts):
            labels = [data.label_names[label] for label in data.Y[i].indices]
            file.write(json.dumps({"text": text, "labels": labels}) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path" / "to" / "data").mkdir(parents=True)
    write_lines(tmp_path / "path" / "to" / "data" / "train.jsonl", seed=0)
    write_lines(tmp_path / "path" / "to" / "data" / "test.jsonl", seed=1)
    write_lines(tmp_path / "questions.jsonl", seed=0)
    write_lines(tmp_path / "test.jsonl", seed=1)
    return tmp_path


def test_the_python_code_runs(folder, capsys):
    assert len(CODE) == 2
    names: dict[str, object] = {}
    for block in CODE:
        exec(compile(block, "README.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    assert set(first.strip("[]").replace("'", "").split(", ")) == {"beer", "brewing"}
    assert float(second) > 90


def test_the_commands_run_in_the_order_shown(folder):
    assert len(COMMANDS) == 5
    printed = {}
    for command in COMMANDS:
        name = command.partition("longtail ")[2].split()[0]
        command = command.replace("longtail ", f"{shlex.quote(sys.executable)} -m longtail ", 1)
        command = command.replace(" --out model", " --out model --budget 5s")  # to be quick here
        command = command.replace("How do I brew a stout at home?", planted_texts(n=1).texts[0])
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        printed[name] = done.stdout
    assert set(json.loads(printed["predict"])["labels"][0]) == {"label", "score"}
    assert "label" in printed["explain"]


def test_the_table_of_commands_names_them_all():
    shown = set(re.findall(r"^\| `longtail (\w+)", README, re.MULTILINE))
    help_text = subprocess.run(
        [sys.executable, "-m", "longtail", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = set(re.findall(r"^  (\w+) {2,}", help_text.split("Commands:")[1], re.MULTILINE))
    assert shown == commands
