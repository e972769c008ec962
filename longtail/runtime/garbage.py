"""When Python looks for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage() -> Iterator[None]:
    """Let Python look for no garbage meanwhile, nor later among what is made here.

    For imports: they make hundreds of thousands of objects that stay to the end. Looking at them
    again and again takes a fifth of a server's start, and a pause now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
