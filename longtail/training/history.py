"""What happened in training, and the log of it: a CSV file, and TensorBoard where installed."""

import csv
import io
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from longtail.progress import SILENT, Progress

Item = TypeVar("Item")

NOTE_SECONDS = 0.5


@dataclass
class History:
    """What happened in training.

    Attributes:
        records: one line of the log each: step, epoch, loss, learning_rate, documents_per_second,
            seconds, and the values of `validate` where there was a validation.
        best: the values of the best validation; None if there was none.
        best_step: the step after which it took place; its weights are the ones kept.
        n_steps: how many steps were made.
        stopped_early: whether patience ran out.
        problem: why training had to stop, None if it did not; the last good weights are kept.
        seconds: the time training took.
        waiting: how many of these seconds were spent waiting for the next batch.
    """

    records: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] | None = None
    best_step: int = 0
    n_steps: int = 0
    stopped_early: bool = False
    problem: str | None = None
    seconds: float = 0.0
    waiting: float = 0.0


class Clock:
    """Measures how long a run takes and how fast it is, and tells the progress display."""

    def __init__(self) -> None:
        self._before = self._waited_before = self._waited = 0.0
        self._began = self._noted = time.monotonic()
        self._losses: deque[float] = deque(maxlen=50)
        self._n_documents = 0

    def begin(self, history: History) -> None:
        """Start the clock after what earlier parts of the run took."""
        self._before, self._waited_before = history.seconds, history.waiting
        self._began = self._noted = time.monotonic()

    def wait_for(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items, counting the time they keep us waiting."""
        while True:
            began = time.monotonic()
            item = next(items, None)
            self._waited += time.monotonic() - began
            if item is None:
                return
            yield item

    def count(self, loss: float, n_documents: int) -> None:
        """Take in a step."""
        self._losses.append(loss)
        self._n_documents += n_documents

    def measure(self, history: History) -> dict[str, float]:
        """Set the history's times; return recent loss, documents per second and seconds."""
        elapsed = time.monotonic() - self._began
        history.seconds = self._before + elapsed
        history.waiting = self._waited_before + self._waited
        speed = self._n_documents / max(elapsed, 1e-9)
        loss = sum(self._losses) / max(len(self._losses), 1)
        return {"loss": loss, "documents_per_second": round(speed, 1), "seconds": history.seconds}

    def note(self, progress: Progress, history: History) -> None:
        """Show the loss, the latest validation and the speed, now and then."""
        if time.monotonic() - self._noted < NOTE_SECONDS:
            return
        self._noted = time.monotonic()
        now = self.measure(history)
        parts = [f"loss {now['loss']:.4g}"]
        latest = next((record for record in reversed(history.records) if "P@1" in record), {})
        parts += [f"{name} {latest[name]:.1f}" for name in ("P@1", "nDCG@5") if name in latest]
        progress.note(", ".join([*parts, f"{now['documents_per_second']:,.0f} documents/s"]))


class Pacer:
    """Plans how many steps there are, so that the last is made before a time is over."""

    def __init__(self, stop_at: float, n_steps: int) -> None:
        self._stop_at, self._most = stop_at, n_steps
        self._first: tuple[int, float] | None = None  # the first step, which takes longer

    def plan(self, step: int) -> int:
        """Return the number of the last step, as fast as those since the first were."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
            return self._most if now < self._stop_at else step
        first, began = self._first
        n_left = (self._stop_at - now) * (step - first) / max(now - began, 1e-9)
        return min(self._most, step + max(0, int(n_left)))


class Log:
    """Writes the records of a run to `log.csv` and to TensorBoard's files in `run_dir`."""

    def __init__(self, run_dir: Path | None, progress: Progress = SILENT) -> None:
        self._path = None if run_dir is None else run_dir / "log.csv"
        self._progress = progress
        self._board: Any = None
        with self._in_spite_of_errors():
            self._board = None if run_dir is None else _open_board(run_dir)

    @contextmanager
    def _in_spite_of_errors(self) -> Iterator[None]:
        """Go on without a log if it cannot be written, as on a full disk, and say so once."""
        try:
            yield
        except OSError as error:
            self._progress.say(f"Note: training goes on without a log: {error.strerror}")
            self._path = self._board = None

    def write(self, history: History) -> None:
        """Write the whole table, so that a resumed run leaves no line twice."""
        if self._path is not None:
            with self._in_spite_of_errors():
                self._write(self._path, history)

    def _write(self, path: Path, history: History) -> None:
        columns = list(dict.fromkeys(name for record in history.records for name in record))
        text = io.StringIO()
        table = csv.DictWriter(text, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(history.records)
        new = path.with_suffix(".csv.new")
        new.write_text(text.getvalue())
        new.replace(path)
        if self._board is not None:
            record = history.records[-1]
            for name in record.keys() - {"step", "epoch"}:
                self._board.add_scalar(name, record[name], int(record["step"]))

    def close(self) -> None:
        """Finish TensorBoard's file."""
        if self._board is not None:
            with self._in_spite_of_errors():
                self._board.close()


def _open_board(run_dir: Path) -> Any:
    """Return TensorBoard's writer, None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run_dir / "tensorboard"))
