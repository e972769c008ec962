"""`python -m bench.loading`: how long a large model takes to its first answer, and what it shares.

It trains a `glas` model of made-up words whose folder has about `--megabytes`, or takes the folder
`--model`. Then new processes load it and label one text: the seconds are those from the start of
the interpreter to the answer, the best of `--rounds`; processor time counts all threads. Last,
`--processes` load the folder and stay: of what each has in memory (RSS), its share counts (PSS),
pages that n processes have in common as 1/n each.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import longtail
from bench.table import markdown

DIM = 512
BYTES_A_WORD = DIM + 37  # weights of a byte each, their scale, and the word itself
WORDS_EACH = 100
N_LABELS = 500
ANSWER = """
import sys, time
import longtail
model = longtail.load_model(sys.argv[1])
model.predict(["word1 word2 word3"])
print(time.process_time(), flush=True)
if sys.argv[2] == "stay":
    sys.stdin.read()
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        folder = args.model or make_model(Path(made) / "model", args.megabytes)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        answer_once(folder)  # compiled code is kept on disk, the folder in the system's cache
        seconds, cpu = zip(*(answer_once(folder) for _ in range(args.rounds)), strict=True)
        figures = [f"{size:.0f}", f"{min(seconds):.2f}", f"{min(cpu):.2f}"]
        print(markdown(["MB", "first answer s", "CPU s"], [figures]))
        shares = measure_memory(folder, args.processes)
    rows = [[str(i), *(f"{part:.0f}" for part in each)] for i, each in enumerate(shares, 1)]
    print(markdown(["process", "RSS MB", "PSS MB"], rows))
    print(f"all together: {sum(pss for _, pss in shares):.0f} MB")


def make_model(folder: Path, megabytes: int) -> Path:
    """Train a model of about that size."""
    n_words = megabytes * 1_000_000 // BYTES_A_WORD
    words = [f"word{i}" for i in range(n_words)]
    texts = [" ".join(words[i : i + WORDS_EACH]) for i in range(0, n_words, WORDS_EACH)]
    texts += texts  # as a word of one document alone is dropped
    labels = [[f"label {i % N_LABELS}"] for i in range(len(texts))]
    longtail.GLaS(dim=DIM, epochs=1).fit(texts, labels).save(folder)
    return folder


def answer_once(folder: Path) -> tuple[float, float]:
    """Return the seconds of a new process up to its first answer, and its processor time."""
    began = time.perf_counter()
    with _start(folder, "end") as process:
        cpu = float(_read_line(process))
        return time.perf_counter() - began, cpu


def measure_memory(folder: Path, n_processes: int) -> list[tuple[float, float]]:
    """Return RSS and PSS of processes that serve one folder, in MB."""
    processes = [_start(folder, "stay") for _ in range(n_processes)]
    try:
        for process in processes:
            _read_line(process)
        return [_read_memory(process.pid) for process in processes]
    finally:
        for process in processes:
            process.communicate("")


def _start(folder: Path, then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ANSWER, str(folder), then]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _read_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit("a process that should load the model has failed")
    return line


def _read_memory(pid: int) -> tuple[float, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) / 1e3 for name, rest in (line.split(":") for line in lines)}
    return found["Rss"], found["Pss"]


if __name__ == "__main__":
    main()
