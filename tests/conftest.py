"""Settings of the whole test run, made before anything loads numpy or torch."""

import os
import signal
from collections import Counter

import pytest
from hypothesis import settings

from longtail.runtime.garbage import no_garbage

# The networks of the tests are tiny: a second thread costs more than it gains. One thread makes
# tests/test_model_contract.py 2.4 times as quick on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test pulls the plug, so none waits for the disk; commands run as processes of their own do.
os.fsync = lambda file: None

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Chosen by --hypothesis-profile thorough, where a test does not say how many cases it tries.
settings.register_profile("thorough", max_examples=10_000)

# Few tests that take long, the longest first: begun early, they let two workers end together.
LONG_FILES = (
    "test_tutorials.py",
    "test_cluster.py",
    "test_processes.py",
    "test_compare.py",
    "test_page.py",
    "test_page_access.py",
    "test_page_files.py",
    "test_serve.py",
    "test_compiled.py",
    "test_loop.py",
    "test_attention_update.py",
    "test_readme.py",
)
PLACES = {name: place for place, name in enumerate(LONG_FILES)}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage neither now nor, later on, among all that is imported for the tests."""
    with no_garbage():
        return (yield)


def pytest_collection_modifyitems(items):
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (PLACES.get(item.path.name, len(PLACES)), -sizes[item.path]))
