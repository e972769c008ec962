"""Labels for documents on a cluster: one machine reads, all nodes label, one folder is written.

Documents are read here, in the batches that `longtail predict` reads, and go out in parts of a few
batches. A worker labels each batch as one machine would, so the bits are the same, and returns the
part as the bytes of a Parquet file, which is written here. Nodes therefore need no common disk.
Only a few parts for each core are under way, so neither memory nor the object store grow with the
documents. A part whose worker or node dies is given to another.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from longtail.cluster.model_folder import ModelFolder, offer_model, open_model
from longtail.cluster.parts import DOCUMENTS, PartsFolder, hash_documents
from longtail.cluster.tasks import RayWorkers
from longtail.data import Dataset, ReadOptions, read_batches
from longtail.data.results import make_parquet
from longtail.progress import SILENT, Progress
from longtail.reading import ANYTHING
from longtail.runtime.store import fetch
from longtail.runtime.workers import Needs
from longtail.storage import RemotePath, as_place

PART_BATCHES = 4  # batches, of 8,192 documents each
AHEAD = 2  # parts under way for each that is being labelled
LEAST_BYTES = 300 << 20  # what a worker takes beside the model


class Request(NamedTuple):
    """What is asked of the model, the same for all documents."""

    k: int | None = None
    threshold: float | None = None
    language: str | None = None
    long: bool = False
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"  # with cuda, each worker has a GPU of its own


USUAL = Request()


class Part(NamedTuple):
    """Some batches of documents, and where they stand among all."""

    number: int
    first: int
    batches: Sequence[Dataset]

    @property
    def n_documents(self) -> int:
        """How many documents these are."""
        return sum(map(len, self.batches))


def predict(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    workers: RayWorkers,
    request: Request = USUAL,
    *,
    reading: ReadOptions = ANYTHING,
    overwrite: bool = False,
    part_batches: int = PART_BATCHES,
    progress: Progress = SILENT,
) -> int:
    """Label the documents of `source` into the folder `out`; return how many there are.

    Run again after it was stopped, it keeps the parts that are finished.

    Args:
        model: the folder of a saved model, or its URL.
        source: what `longtail predict` reads.
        out: the folder of Parquet files to write, or its URL.
        workers: the cluster, of `connected`.
        request: how many labels, and which.
        reading: what else is known about the source.
        overwrite: replace what another run wrote into `out`.
        part_batches: how many batches of documents a part has.
        progress: is shown what takes long.
    """
    where = as_place(model)
    local = fetch(where) if isinstance(where, RemotePath) else where
    folder = offer_model(local, workers)
    made_with = {
        "model": folder.digest,
        "part batches": part_batches,
        "columns kept": reading.keep,
        **request._replace(threads=0, device="cpu")._asdict(),
    }
    parts = PartsFolder(as_place(out), made_with)
    n_bytes = LEAST_BYTES + sum(file.stat().st_size for file in local.iterdir())
    needs = Needs(n_bytes, request.threads, int(request.device == "cuda"))
    workers.check_fits(needs)
    progress.say(f"Cluster: {workers.describe()}")
    cut = cut_parts(read_batches(source, reading), part_batches)
    first = list(islice(cut, 1))  # what cannot be read leaves no folder
    with parts.opened(overwrite=overwrite):
        run = _Run(parts, folder, request, workers, needs, progress)
        return run.label(chain(first, cut))


def cut_parts(batches: Iterator[Dataset], part_batches: int) -> Iterator[Part]:
    """Put batches together, some at a time; one for the first part, as all others wait for it."""
    number = first = 0
    waiting: list[Dataset] = []
    for batch in batches:
        if len(waiting) == (part_batches if number else 1):
            part = Part(number, first, waiting)
            yield part
            number, first, waiting = number + 1, first + part.n_documents, []
        waiting.append(batch)
    if waiting:
        yield Part(number, first, waiting)


class _Run:
    """The parts of one run: those under way, and those that are done."""

    def __init__(
        self,
        parts: PartsFolder,
        folder: ModelFolder,
        request: Request,
        workers: RayWorkers,
        needs: Needs,
        progress: Progress,
    ) -> None:
        self.parts, self.folder, self.request = parts, folder, request
        self.workers, self.needs, self.progress = workers, needs, progress
        self.under_way: dict[Any, tuple[int, int]] = {}  # number and documents, by ticket
        self.schema: Any = None  # the columns of the first part, which all have
        self.n_done = self.n_kept = 0

    def label(self, parts: Iterator[Part]) -> int:
        """Label all parts but those that are finished; return how many documents there are."""
        self.progress.stage("labelling", 0)
        n_parts = n_documents = 0
        said = ""
        try:
            for part in parts:
                if (read_as := part.batches[0].read_as) not in ("", said):
                    self.progress.say(f"Note: {(said := read_as)}")
                n_parts, n_documents = part.number + 1, part.first + part.n_documents
                self._begin(part)
                # The first part decides on the columns of all.
                self._await(0 if part.number == 0 else self._most() - 1)
            self._await(0)
        finally:
            self.workers.cancel(list(self.under_way))
        if self.n_kept:
            self.progress.say(f"{self.n_kept:,} documents had their labels from an earlier run")
        self.parts.finish(n_parts, n_documents)
        return n_documents

    def _most(self) -> int:
        """Return how many parts may be under way: the reader waits for the workers."""
        return max(2, AHEAD * self.workers.n_cores // self.request.threads)

    def _begin(self, part: Part) -> None:
        digest = hash_documents(part.batches)
        found = self.parts.read_schema(part.number, digest)
        if found is not None:
            self.schema = self.schema or found
            self.n_kept += part.n_documents
            self._count(part.n_documents)
            return
        ticket = self.workers.submit(
            label_part,
            self.folder,
            self.request,
            self.workers.share(part),
            digest,
            self.schema,
            needs=self.needs,
        )
        self.under_way[ticket] = part.number, part.n_documents

    def _await(self, most: int) -> None:
        """Write parts as they are done, until at most so many are under way."""
        while len(self.under_way) > most:
            self.progress.advance(0)  # lets Ctrl-C through
            for ticket in self.workers.wait(list(self.under_way)):
                contents, schema = self.workers.get(ticket)
                number, n_documents = self.under_way.pop(ticket)
                self.parts.write(number, contents)
                self.schema = self.schema or schema
                self._count(n_documents)

    def _count(self, n_documents: int) -> None:
        self.n_done += n_documents
        self.progress.advance(n_documents)
        self.progress.note(f"{self.n_done:,} documents")


def label_part(
    folder: ModelFolder, request: Request, part: Part, digest: str, schema: Any
) -> tuple[bytes, Any]:
    """Label the documents of a part; return the bytes of a Parquet file and its columns.

    Runs on a node.
    """
    from longtail.runtime.device import set_device
    from longtail.runtime.parallel import set_threads

    set_threads(request.threads)
    set_device(request.device)
    model = open_model(folder)
    names = model.label_names_ if request.language is None else model.names_in(request.language)
    pairs = (
        (
            batch,
            model.predict(batch, request.k, threshold=request.threshold, language=request.language),
        )
        for batch in part.batches
    )
    return make_parquet(
        pairs,
        names,
        model.label_uris,
        long=request.long,
        n_before=part.first,
        schema=schema,
        metadata={DOCUMENTS: digest.encode()},
    )
