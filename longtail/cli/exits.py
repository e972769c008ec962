"""How a command ends: each error in one line on stderr, with its exit code.

- 0: done
- 1: a bug in longtail
- 2: something the user can put right, such as data, parameters, options, files, disk space
- 130: stopped by Ctrl-C
- 141: whoever read our output stopped reading (`| head`)
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from longtail.cli.limits import MIB, address_space, check_address_space, may_lack_memory
from longtail.cli.terminal import echo, echo_block, flush, is_terminal, silence
from longtail.errors import LongtailError, ParameterError, reraise_interrupt, suggest

BUG, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
NOTHING_WRITTEN = "nothing was written."

# typer carries its own copy of click since 0.26 and imports click before: the public name
# `BadParameter` leads to the common base class in both.
UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])


class Interrupted(Exception):
    """The user pressed Ctrl-C; the message says what is kept."""


@contextmanager
def if_interrupted(what_is_kept: str | Callable[[], str]) -> Iterator[None]:
    """Tell the user `what_is_kept` when Ctrl-C stops the work inside."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        text = what_is_kept if isinstance(what_is_kept, str) else what_is_kept()
        raise Interrupted(text) from error


def _is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error; an import that it breaks off says something else."""
    if isinstance(error, (Interrupted, UsageError, typer.Exit, typer.Abort)):
        return False
    try:
        reraise_interrupt(error)
    except KeyboardInterrupt:
        return True
    return bool(_presses)


def say_what_is_in(path: Path) -> Callable[[], str]:
    """Return what tells, later, whether the model at `path` is still what it is now."""
    from longtail.runtime.store import identify

    before = identify(path)

    def say() -> str:
        if identify(path) in (None, before):
            return f"no model was saved and {path} is as it was before."
        return f"the new model is in {path}."

    return say


class Commands(TyperGroup):
    """A group of commands that ends each of them as the module docstring says."""

    def main(  # type: ignore[override]  # the base class names its options one by one
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line `args` and exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name, **extra)
            flush()
        except UsageError as error:
            code = _complain(_describe_usage_error(error), USER_ERROR)
        except OSError as error:  # what help was written to could not take it
            code = _end(error, debug=False)
        silence()
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options; the help that some of them print may find no reader."""
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:  # for which click has another exit code
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt as error:  # of which click says nothing
            raise typer.Exit(_end(error, debug=False)) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the outermost group answers for whatever goes wrong in it."""
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            with remember_ctrl_c(), if_interrupted(NOTHING_WRITTEN):
                check_address_space()
                super().invoke(ctx)
            flush()
        except (LongtailError, OSError, MemoryError, Interrupted, KeyboardInterrupt) as error:
            raise typer.Exit(_end(error, debug=ctx.params["debug"])) from error
        except (UsageError, typer.Exit, typer.Abort):
            raise
        except Exception as error:
            raise typer.Exit(_end(error, debug=ctx.params["debug"])) from error

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that `args` begins with, or suggest the nearest one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            hint = suggest(name, known) or f"; there are {', '.join(known)}"
            raise ParameterError(f"No such command '{name}'{hint}")
        return super().resolve_command(ctx, args)


def _end(error: BaseException, *, debug: bool) -> int:
    """Report `error` and return its exit code."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    if debug:
        echo_block("".join(traceback.format_exception(error)), err=True)
    if isinstance(error, Interrupted):
        return _complain(str(error), INTERRUPTED, prefix="Stopped: ")
    if isinstance(error, KeyboardInterrupt):
        return _complain(NOTHING_WRITTEN, INTERRUPTED, prefix="Stopped: ")
    if isinstance(error, LongtailError):
        return _complain(str(error), USER_ERROR)
    if isinstance(error, MemoryError):
        return _complain("there is not enough memory for this", USER_ERROR)
    if isinstance(error, OSError):
        return _complain(_describe_os_error(error), USER_ERROR)
    if may_lack_memory():
        limit = f"{address_space() / MIB:,.0f} MiB of address space (see ulimit -v)"
        found = " ".join(f"{type(error).__name__}: {error}".split())
        return _complain(f"this process may use {limit}, probably too little: {found}", USER_ERROR)
    return _complain(
        f"a bug in longtail, {type(error).__name__}: {' '.join(str(error).split())} "
        "(set LONGTAIL_DEBUG=1 to see where it happened)",
        BUG,
    )


def _complain(message: str, code: int, *, prefix: str = "Error: ") -> int:
    if code == INTERRUPTED and is_terminal(sys.stderr):
        echo("", err=True)  # the cursor may stand behind the ^C that the terminal echoed
    echo(prefix + message, err=True)
    return code


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _describe_usage_error(error: Any) -> str:
    """Say in one line what is wrong with the options and where their description is."""
    message = error.format_message().rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        known = [name[2:] for param in error.ctx.command.params for name in param.opts]
        hint = suggest(error.option_name.lstrip("-"), known).replace("'", "'--", 1)
        message = f"No such option '{error.option_name}'{hint}"
    where = "longtail" if error.ctx is None else error.ctx.command_path
    return f"{message} (see {where} --help)"


def quit_now(code: int) -> NoReturn:
    """Leave without waiting for threads that are inside compiled code and cannot be stopped."""
    silence()
    os._exit(code)


# -- Ctrl-C that is not lost ------------------------------------------------------------------

# Python raises KeyboardInterrupt wherever it happens to be, and has to drop it inside a finalizer
# or a callback. So a press is also remembered, and the next step of the progress stops the work.

_presses: list[int] = []


@contextmanager
def remember_ctrl_c() -> Iterator[None]:
    """Remember presses inside, unless Ctrl-C means something else than usual."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _presses.clear()


def _press(number: int, frame: FrameType | None) -> None:
    _presses.append(number)
    raise KeyboardInterrupt


def stop_if_pressed() -> None:
    """Raise KeyboardInterrupt if there was one that has been lost."""
    if _presses:
        raise KeyboardInterrupt
