"""When Python looks for garbage."""

import gc

import pytest

from longtail.runtime.garbage import no_garbage


def test_nothing_is_collected_meanwhile_nor_what_was_made():
    before = gc.get_freeze_count()
    with no_garbage():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_python_collects_again_after_an_error():
    with pytest.raises(ModuleNotFoundError), no_garbage():
        import no_such_module  # noqa: F401
    assert gc.isenabled()
