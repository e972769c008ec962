"""`python -m bench.reading`: how long it takes until a model of texts can begin to learn.

Made-up documents of Amazon-670K's shape are written as JSON lines. Then each stage is done with
each number of threads: reading, packing, turning texts into tokens and into rows, making vectors of
labels, and a tree of these as attention-xml has it. "Alone" are the CPU seconds of a stage outside
of what it gives to all threads: what no number of cores makes shorter. Processes that help to read
are not counted. The checksums say that any number of threads gives the same bits.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import longtail
from bench.made_up import make_up
from bench.table import markdown
from longtail.data.writer import pack
from longtail.labels import kmeans
from longtail.labels import tree as label_tree
from longtail.labels.tree import LabelTree, build_label_vectors, build_tree
from longtail.runtime import parallel
from longtail.runtime.parallel import set_threads
from longtail.text import lexicon, tfidf
from longtail.text.tfidf import Tfidf
from longtail.text.tokens import Tokens

HEADINGS = ["stage", "threads", "seconds", "CPU seconds", "alone", "checksum"]
BLOCK = 20_000  # documents that are written at a time
BRANCHING = 16  # of attention-xml


def write_documents(n_documents: int, n_labels: int, path: Path) -> None:
    """Write made-up documents with 40 words and 4 labels each."""
    with path.open("w") as file:
        made = make_up(n_documents=n_documents, n_labels=n_labels, n_test=1)
        for first in range(0, n_documents, BLOCK):
            X, Y = made.X[first : first + BLOCK], made.Y[first : first + BLOCK]
            for i in range(X.shape[0]):
                words = X.indices[X.indptr[i] : X.indptr[i + 1]].tolist()
                labels = Y.indices[Y.indptr[i] : Y.indptr[i + 1]].tolist()
                text = " ".join(f"w{word}" for word in words)
                line = {"id": str(first + i), "text": text, "labels": [f"l{n}" for n in labels]}
                file.write(json.dumps(line) + "\n")


class _Clock:
    """CPU seconds of the process, and of those the ones that all threads share."""

    def __init__(self) -> None:
        self.shared = 0.0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is counted as shared."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            self._depth += 1
            try:
                return function(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.shared += time.process_time() - began

        return timed

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Count what is given to all threads."""
        places = [(parallel, "in_threads"), (lexicon, "in_threads"), (tfidf, "in_threads")]
        places += [(label_tree, "run_tasks"), (label_tree, "in_threads"), (kmeans, "in_threads")]
        before = [(place, name, getattr(place, name)) for place, name in places]
        for place, name, function in before:
            setattr(place, name, self.around(function))
        try:
            yield
        finally:
            for place, name, function in before:
                setattr(place, name, function)


def measure(path: Path, n_threads: int) -> list[list[str]]:
    """Do all stages with so many threads; return a row of the table for each."""
    set_threads(n_threads)
    rows: list[list[str]] = []

    def stage(name: str, work: Callable[[], Any], check: Callable[[Any], Any]) -> Any:
        clock = _Clock()
        began, cpu = time.monotonic(), time.process_time()
        with clock.installed():
            found = work()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        figures = [f"{number:.1f}" for number in (seconds, cpu, cpu - clock.shared)]
        rows.append([name, str(n_threads), *figures, f"{check(found):08x}"])
        print(" | ".join(rows[-1]), flush=True)
        return found

    data = stage("reading", lambda: longtail.load(path).train, lambda d: _sum(d.Y.indices))
    packed = path.with_suffix(".pack")
    stage("packing", lambda: pack(path, packed), lambda s: _sum(s.train.Y.indices))
    shutil.rmtree(packed)
    stage("tokens", lambda: Tokens().fit_encode(data.texts), lambda rows: _sum(rows.tokens))
    X = stage("rows", lambda: Tfidf().fit_transform(data.texts), lambda X: _sum(X.data))
    vectors = stage("label vectors", lambda: build_label_vectors(X, data.Y), lambda V: _sum(V.data))
    stage("label tree", lambda: _build(vectors), lambda tree: _sum(tree.leaves))
    set_threads(None)
    return rows


def compile_everything(path: Path) -> None:
    """Do all stages on few documents, the tree by all threads too, which only large ones are."""
    large = label_tree.LARGE
    label_tree.LARGE = 0
    try:
        measure(path, 16)
    finally:
        label_tree.LARGE = large


def _build(vectors: Any) -> LabelTree:
    return build_tree(vectors, branching=2, max_leaf=BRANCHING)


def _sum(array: Any) -> int:
    return crc32(np.ascontiguousarray(array).data)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=490_000)
    parser.add_argument("--labels", type=int, default=670_000)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--folder", type=Path, help="where documents go; temporary unless given")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        few, many = Path(temporary) / "few.jsonl", Path(temporary) / "many.jsonl"
        write_documents(2_000, 1_000, few)
        compile_everything(few)
        write_documents(args.documents, args.labels, many)
        rows = [row for n in args.threads.split(",") for row in measure(many, int(n))]
    print(markdown(HEADINGS, rows))


if __name__ == "__main__":
    main()
