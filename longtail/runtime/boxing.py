"""Tuples that compiled code returns, whole or not at all.

Once compiled code has ended, numba makes Python objects of what it returns, for which it runs a
little Python. After a Ctrl-C that is where KeyboardInterrupt is raised, and numba does not look: a
tuple then lacks an item, and the process dies as soon as somebody reads it. Here the items are
looked at, and KeyboardInterrupt is raised where the function was called.
"""

from contextlib import ExitStack
from typing import Any

from numba.core import boxing, cgutils
from numba.core.pythonapi import _boxers

emit: Any = cgutils  # which has no types


def check_tuples() -> None:
    """Let what is compiled from now on return whole tuples or raise."""
    checked = {boxing.box_tuple: _box_tuple, boxing.box_namedtuple: _box_named_tuple}
    registered = _boxers.functions
    registered.update({kind: checked.get(boxer, boxer) for kind, boxer in registered.items()})


def _box_tuple(kind: Any, value: Any, c: Any) -> Any:
    """Emit the code that makes a tuple; a null pointer if that fails, as numba expects it."""
    made = emit.alloca_once_value(c.builder, c.pyapi.get_null_object())
    values = [c.builder.extract_value(value, i) for i in range(kind.count)]
    with ExitStack() as stack:
        found = c.pyapi.tuple_new(kind.count)
        for i, item_kind in enumerate(kind):
            item = c.box(item_kind, values[i])
            with emit.early_exit_if_null(c.builder, stack, item):
                c.pyapi.decref(found)
                for rest_kind, rest in zip(kind.types[i + 1 :], values[i + 1 :], strict=True):
                    c.context.nrt.decref(c.builder, rest_kind, rest)
            c.pyapi.tuple_setitem(found, i, item)
        c.builder.store(found, made)
    return c.builder.load(made)


def _box_named_tuple(kind: Any, value: Any, c: Any) -> Any:
    """Emit the code that makes a named tuple of a tuple."""
    made = emit.alloca_once_value(c.builder, c.pyapi.get_null_object())
    with ExitStack() as stack:
        items = _box_tuple(kind, value, c)
        with emit.early_exit_if_null(c.builder, stack, items):
            pass
        named = c.pyapi.unserialize(c.pyapi.serialize_object(kind.instance_class))
        with emit.early_exit_if_null(c.builder, stack, named):
            c.pyapi.decref(items)
        c.builder.store(c.pyapi.call(named, items), made)
        c.pyapi.decref(named)
        c.pyapi.decref(items)
    return c.builder.load(made)
