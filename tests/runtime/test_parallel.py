import os
import subprocess
import sys
import threading

import pytest
from threadpoolctl import threadpool_info

from longtail.errors import ParameterError
from longtail.runtime.parallel import (
    count_cores,
    in_threads,
    n_threads,
    on_one_blas_thread,
    run_tasks,
    set_threads,
)


@pytest.fixture(autouse=True)
def _restore():
    yield
    set_threads(None)


class Recorder:
    def __init__(self):
        self.total, self.done = 0.0, 0.0

    def stage(self, name, total):
        self.total = total

    def advance(self, amount):
        self.done += amount


def test_results_come_in_the_order_of_the_tasks():
    assert run_tasks(lambda a, b: a * b, [(2, 3), (4, 5), (6, 7)], [1, 3, 2]) == [6, 20, 42]


def test_the_costliest_starts_first():
    set_threads(1)
    started = []
    run_tasks(started.append, [(name,) for name in "abc"], [1, 3, 2])
    assert started == ["b", "c", "a"]


def test_progress_advances_by_the_costs():
    recorder = Recorder()
    run_tasks(abs, [(1,), (2,)], [1.5, 2.5], recorder)
    assert recorder.done == 4.0


def test_an_error_stops_the_rest():
    set_threads(1)
    started = []

    def fail(i):
        started.append(i)
        raise KeyError(i)

    with pytest.raises(KeyError):
        run_tasks(fail, [(i,) for i in range(1000)], [1.0] * 1000)
    assert len(started) < 1000


def test_the_number_of_threads_is_kept():
    set_threads(3)
    assert n_threads() == 3
    seen = set()
    gate = threading.Barrier(3, timeout=10)

    def meet(_):
        gate.wait()
        seen.add(threading.get_ident())

    run_tasks(meet, [(i,) for i in range(3)], [1.0] * 3)
    assert len(seen) == 3


def test_no_threads_at_all():
    with pytest.raises(ParameterError, match=r"must be at least 1. Got 0 instead."):
        set_threads(0)


def test_nothing_to_do():
    assert run_tasks(abs, [], []) == []


def test_work_inside_of_threads_stays_in_its_thread():
    def look(_):
        return n_threads(), in_threads(str, [(1,), (2,)])

    set_threads(2)
    assert in_threads(look, [(0,)] * 4) == [(1, ["1", "2"])] * 4
    assert in_threads(look, [(0,)]) == [(2, ["1", "2"])]  # a single task may have all threads
    assert n_threads() == 2


def test_cores_are_counted_where_the_system_does_not_say_which_may_be_used(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert count_cores() == n_threads() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores() == 1


def test_longtail_works_without_what_only_some_systems_have(tmp_path):
    """A stand-in for macOS and Windows: the names that Python lacks there are taken away."""
    code = """
import os, sys
for name in ("sched_getaffinity", "sched_setaffinity", "sysconf", "killpg"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
import longtail, longtail.cli
model = longtail.Linear().fit(["red wine", "white wine", "dark beer"], [["a"], ["a"], ["b"]])
model.save(sys.argv[1])
print(longtail.load_model(sys.argv[1]).predict(["beer"], k=1).labels.tolist())
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[[1]]"


def blas_threads():
    infos = threadpool_info()
    return {info["num_threads"] for info in infos if info["user_api"] == "blas"}


def test_short_products_use_one_thread():
    before = blas_threads()
    with on_one_blas_thread():
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_numpys_matrix_products_use_no_more_threads():
    before = blas_threads()
    set_threads(1)
    assert blas_threads() == {1}
    set_threads(None)
    assert blas_threads() == before
