"""The queue of a model: who shares a batch, who waits, and who is to blame."""

import asyncio
import threading

import pytest

from longtail.serve.batching import REMEMBERED, Batcher, BusyError, Limits


class Counted:
    """A batcher, and what it told."""

    def __init__(self, **limits):
        self.sizes, self.waiting = [], []
        self.batcher = Batcher(Limits(**limits), self.sizes.append, self.waiting.append)


def shout(documents):
    if "bad" in documents:
        raise ValueError("bad")
    return [document.upper() for document in documents]


def test_what_comes_at_once_shares_a_batch_if_it_asks_for_the_same():
    async def run():
        counted = Counted()
        submit = counted.batcher.submit
        asked = [submit("x", ["a", "b"], shout), submit("y", ["c"], shout), submit("x", [], shout)]
        assert await asyncio.gather(*asked) == [["A", "B"], ["C"], []]
        return counted

    counted = asyncio.run(run())
    assert counted.sizes == [2, 1]
    assert max(counted.waiting) == 3
    assert counted.waiting[-1] == 0


def test_a_document_that_fails_fails_alone():
    async def run():
        counted = Counted()
        asked = [counted.batcher.submit("x", [each], shout) for each in ("a", "bad", "b")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert (await counted.batcher.submit("x", ["c"], shout)) == ["C"]
        return found, counted.sizes

    (first, error, last), sizes = asyncio.run(run())
    assert (first, last) == (["A"], ["B"])
    assert isinstance(error, ValueError)
    assert sizes == [3, 1, 1, 1, 1]


def test_batches_are_no_larger_than_may_be_and_wait_to_fill_up():
    async def run():
        counted = Counted(max_batch=2, max_wait=0.2)
        first = counted.batcher.submit("x", ["a"], shout)
        await asyncio.sleep(0.01)
        rest = [counted.batcher.submit("x", [each], shout) for each in "bcd"]
        await asyncio.gather(first, *rest)
        return counted.sizes

    assert asyncio.run(run()) == [2, 2]


def test_a_full_queue_refuses_and_a_client_that_leaves_makes_room():
    go_on = threading.Event()

    def wait(documents):
        assert go_on.wait(20)
        return documents

    async def run():
        batcher = Counted(max_queue=2, max_batch=1).batcher
        held = batcher.submit("x", ["a"], wait)
        await asyncio.sleep(0.05)
        leaving, staying = (batcher.submit("x", [each], wait) for each in "bc")
        with pytest.raises(BusyError, match="2 documents are waiting, and 2 may"):
            batcher.submit("x", ["d"], wait)
        leaving.cancel()
        await asyncio.sleep(0)
        assert batcher.n_waiting == 1
        late = batcher.submit("x", ["e"], wait)
        go_on.set()
        assert await asyncio.gather(held, staying, late) == [["a"], ["c"], ["e"]]

    asyncio.run(run())


def test_short_documents_do_without_the_thread_while_they_are_quick(monkeypatch):
    threads, pause, now = [], [0.0], [0.0]
    monkeypatch.setattr("longtail.serve.batching.time.perf_counter", lambda: now[0])

    def note(documents):
        threads.append(threading.current_thread())
        now[0] += pause[0]
        return documents

    async def run():
        batcher = Counted().batcher
        for is_short, seconds in [(True, 0), (True, 0), (False, 0)] + REMEMBERED * [(True, 0.01)]:
            pause[0] = seconds
            assert await batcher.submit("x", ["a"], note, is_short=is_short) == ["a"]
        assert await batcher.submit("x", ["a"], note, is_short=True) == ["a"]

    asyncio.run(run())
    here = [each is threading.main_thread() for each in threads]
    # Nothing is known of the first; of the last, that all of late were slow.
    assert here == [False, True, False, *REMEMBERED * [True], False]
