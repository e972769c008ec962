"""Hostile surroundings: closed streams, folders that cannot be written, limits, odd locales."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from random import Random

from attack.case import Attack, Attempt, Outcome
from attack.commands import run_command, write_documents

BROKEN_PIPE = 141
SECONDS = 60

# In a shell, as Python itself needs most of what is taken away here.
STREAMS = [
    *("", "", "", "<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"),
    *("| head -1", "| true", "2>&1 | true", "</dev/null", ">/dev/null 2>&1"),
]
LIMITS = [
    *("", "", "", "ulimit -n 12", "ulimit -n 40", "ulimit -f 0", "ulimit -f 1", "ulimit -v 100000"),
    *("ulimit -v 400000", "ulimit -v 700000", "ulimit -u 1", "ulimit -s 256", "umask 777"),
]
VARIABLES: list[dict[str, str | None]] = [
    {},
    {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "utf-16"},
    {"TERM": "dumb", "COLUMNS": "1"},
    {"COLUMNS": "x", "LINES": "0", "FORCE_COLOR": "1"},
    {"HOME": None},
    {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"},
    {"NUMBA_CACHE_DIR": "/dev/null/x"},
    {"TMPDIR": "/dev/null"},
    {"TZ": "Nowhere/Land"},
    {"PYTHONUNBUFFERED": "1"},
    {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error"},
    {"OMP_NUM_THREADS": "0", "NUMBA_NUM_THREADS": "1"},
]


def run(command: str, variables: dict[str, str | None], folder: Path) -> tuple[int, str]:
    """Run a line of shell in a folder; return the exit code of its first command, and stderr."""
    env = {**os.environ, **{key: value for key, value in variables.items() if value is not None}}
    for key in [key for key, value in variables.items() if value is None]:
        env.pop(key, None)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr.decode("utf-8", "backslashreplace")


def check_end(code: int, said: str) -> Outcome:
    """Make sure that a command ended with a documented code and at most one line of error."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("Error: ")]
    if code not in (0, 2, BROKEN_PIPE) or "Traceback" in said or "a bug in" in said:
        raise AssertionError(f"exit code {code}: {said}")
    if len(errors) > 1 or "Exception ignored" in said:
        raise AssertionError(f"more than one sentence: {said}")
    return "refused" if code == 2 else "answered"


def _prepare(folder: Path) -> Attempt:
    data = write_documents(folder / "data.jsonl", 60)
    run_command("train", data, "--out", folder / "model", "--model", "knn", "--valid", "0")
    (folder / "closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    longtail = f"{sys.executable} -m longtail"
    commands = [
        "--help",
        "models",
        "models knn",
        "data info data.jsonl",
        "verify model",
        "predict model data.jsonl",
        "predict model data.jsonl --out closed/out.jsonl --overwrite",
        "predict model -",
        "explain model 'hops and malt'",
        "evaluate model data.jsonl --json -",
        "train data.jsonl --model linear --valid 0 --overwrite --out out",
        "train data.jsonl --model linear --valid 0 --overwrite --out closed/out",
        "train data.jsonl --model linear --out /dev/null/out",
        "update model data.jsonl --out missing/model",
    ]

    def attempt(random: Random) -> Outcome:
        variables = {**random.choice(VARIABLES), **random.choice(VARIABLES)}
        limit = random.choice(LIMITS)
        command = f"{longtail} {random.choice(commands)} {random.choice(STREAMS)}"
        line = f"{limit}; {command}" if limit else command
        try:
            return check_end(*run(line, variables, folder))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{variables}: {line}: {error}") from error

    return attempt


ATTACKS = [
    Attack(
        "surroundings",
        "whatever is closed, full or limited: done, or one sentence and a known exit code",
        _prepare,
        seconds=SECONDS + 10,
    )
]
