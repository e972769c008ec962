"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be, and has to swallow it inside a finalizer
or a callback. So a press is also remembered, and the next step of the progress stops the work.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
