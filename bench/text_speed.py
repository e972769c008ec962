"""`python -m bench.text_speed DATA …`: how fast texts become rows and tokens.

The training texts of each data set are repeated until they make up `--megabytes`. All four ways are
measured with one thread and with two, in megabytes of UTF-8 a second: by the clock, which on a busy
machine also shows what else runs there, and by the processor time of all threads. Then single texts
are turned, and the median time is taken.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import longtail
from bench.table import markdown
from longtail.runtime.parallel import set_threads
from longtail.text.tfidf import Tfidf
from longtail.text.tokens import Tokens

HEADINGS = ["texts", "what", "threads", "MB/s", "MB per CPU second"]
SINGLE_HEADINGS = ["texts", "what", "one p50 µs"]
N_SINGLE = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every data set, then print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args(arguments)
    rows, single = [], []
    for data in args.data:
        texts = list(longtail.load(data).train.texts or [])
        tfidf, tokens = Tfidf(), Tokens()
        tfidf.fit(texts)  # compiled code is loaded, or compiled, here
        tokens.fit(texts)
        for what, turn in {"rows": tfidf.transform, "tokens": tokens.encode}.items():
            single.append([data.name, what, f"{time_single(turn, texts[:N_SINGLE]):.1f}"])
        many = repeat(texts, args.megabytes)
        for n_threads in map(int, args.threads.split(",")):
            set_threads(n_threads)
            for what, turn in {
                "Tfidf.fit_transform": tfidf.fit_transform,
                "Tfidf.transform": tfidf.transform,
                "Tokens.fit_encode": tokens.fit_encode,
                "Tokens.encode": tokens.encode,
            }.items():
                speeds = [f"{speed:.1f}" for speed in measure(turn, many)]
                rows.append([data.name, what, str(n_threads), *speeds])
            set_threads(None)
    print(markdown(HEADINGS, rows))
    print(markdown(SINGLE_HEADINGS, single))


def repeat(texts: list[str], megabytes: float) -> list[str]:
    """Return the texts as often as they fit into the size, once at least."""
    return texts * max(1, int(megabytes / count_megabytes(texts)))


def count_megabytes(texts: Sequence[str]) -> float:
    """Return how large the texts are in UTF-8."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / 1e6


def measure(turn: Callable[[list[str]], object], texts: list[str]) -> tuple[float, float]:
    """Return megabytes a second: by the clock, and by the processor time of all threads."""
    size = count_megabytes(texts)
    began, cpu = time.perf_counter(), time.process_time()
    turn(texts)
    return size / (time.perf_counter() - began), size / (time.process_time() - cpu)


def time_single(turn: Callable[[list[str]], object], texts: Sequence[str]) -> float:
    """Return the median of the microseconds that one text takes."""
    times = []
    for text in texts:
        one = [text]
        began = time.perf_counter()
        turn(one)
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


if __name__ == "__main__":
    main()
