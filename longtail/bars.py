"""Progress on stderr: bars on a terminal, one line for each finished stage elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from longtail.terminal import echo, is_terminal, open_console
from longtail.visible import visible

KEPT_AFTER = 1.0  # seconds that a stage must take for its bar to stay when it is over
SHOWN_AFTER = 2.0  # seconds that a stage must take to deserve a line in a log file
NOTED_EVERY = 30.0  # seconds between two notes in a log file


def go_on() -> None:
    """Let the next step begin."""


class Bars:
    """A `longtail.progress.Progress` for terminals: stage, bar, elapsed and remaining time."""

    def __init__(self, before_step: Callable[[], None] = go_on) -> None:
        """Prepare the bars; nothing is drawn yet. `before_step` may stop the work by an error."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            _remaining_column(),
            TextColumn("{task.fields[note]}", markup=False),
            console=open_console(err=True),
            transient=False,
        )
        self._task: Any = None
        self._before_step = before_step

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draw the last state and stop."""
        if error is None:
            self._finish()
        self._bars.stop()

    def stage(self, name: str, total: float) -> None:
        """Begin the stage `name` under a bar of its own."""
        self._before_step()
        self._finish()
        self._task = self._bars.add_task(visible(name), total=total or None, note="")

    def advance(self, amount: float) -> None:
        """Move the current bar."""
        self._before_step()
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        """Show the note behind the current bar."""
        if self._task is not None:
            self._bars.update(self._task, note=visible(text))

    def say(self, text: str) -> None:
        """Print the line above the bars."""
        self._bars.console.print(text, soft_wrap=True)

    def _finish(self) -> None:
        """Fill the current bar, whatever its estimate was, or remove it if it was a short one."""
        if self._task is None:
            return
        task = next(task for task in self._bars.tasks if task.id == self._task)
        if (task.elapsed or 0) < KEPT_AFTER:
            self._bars.remove_task(self._task)
        else:
            total = task.total or 1
            self._bars.update(self._task, total=total, completed=total)
        self._task = None


class Lines:
    """A `longtail.progress.Progress` for log files: a line when a stage took a while."""

    def __init__(
        self, before_step: Callable[[], None] = go_on, shown_after: float | None = None
    ) -> None:
        """Begin without a stage.

        `before_step` may stop the work by an error; stages that take less than `shown_after`
        seconds, `SHOWN_AFTER` unless given, are not reported.
        """
        self._before_step = before_step
        self._shown_after = SHOWN_AFTER if shown_after is None else shown_after
        self._name: str | None = None
        self._began = self._noted = 0.0
        self._total = self._done = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Report the last stage if it was finished."""
        if error is None:
            self._finish()

    def stage(self, name: str, total: float) -> None:
        """Report the stage before and begin the stage `name`."""
        self._before_step()
        self._finish()
        self._name, self._total, self._done = name, total, 0.0
        self._began = self._noted = time.monotonic()

    def advance(self, amount: float) -> None:
        """Count, and show nothing: a log file needs no steps."""
        self._before_step()
        self._done += amount

    def note(self, text: str) -> None:
        """Report the note and the time left, unless the last one was a short while ago."""
        now = time.monotonic()
        if now - self._noted < NOTED_EVERY:
            return
        self._noted = now
        left = (now - self._began) * (self._total / self._done - 1) if self._done else 0.0
        ending = f", about {_format_seconds(left)} left" if left > 0 else ""
        echo(f"{self._name}: {text}{ending}", err=True)

    def say(self, text: str) -> None:
        """Print the line."""
        echo(text, err=True)

    def _finish(self) -> None:
        seconds = time.monotonic() - self._began
        if self._name is not None and seconds >= self._shown_after:
            echo(f"{self._name}: {seconds:.1f} s", err=True)


def choose_progress(
    before_step: Callable[[], None] = go_on, shown_after: float | None = None
) -> Bars | Lines:
    """Return the progress that suits stderr, to be used in a `with` statement."""
    return Bars(before_step) if is_terminal(sys.stderr) else Lines(before_step, shown_after)


def _remaining_column() -> Any:
    """Return the column that says how long the stage will still take."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Remaining(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            left = task.time_remaining
            if task.finished or left is None:
                return Text("")
            return Text(f"about {_format_seconds(left)} left")

    return Remaining()


def _format_seconds(seconds: float) -> str:
    """Return 45 s, 3 min or 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
