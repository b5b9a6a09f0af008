"""Threads are used again, the last idle one first, and end when they are not needed."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from dataservice.runtime.exchanges.kept_threads import KeptThreads
from tests.waiting import wait_until

PATIENCE_S = 30.0


@pytest.fixture
def threads() -> Iterator[KeptThreads]:
    threads = KeptThreads("kept", kept_s=PATIENCE_S)
    yield threads
    threads.stop(time.monotonic() + PATIENCE_S)


def holding(threads: KeptThreads) -> Callable[[], None]:
    """Occupies a thread; returns what frees it."""
    begun, free = threading.Event(), threading.Event()
    threads.run(lambda: (begun.set(), free.wait(PATIENCE_S)))
    assert begun.wait(PATIENCE_S)
    return free.set


def test_idle_thread_is_used_again_and_keeps_nothing_of_its_work(threads: KeptThreads) -> None:
    class Work:
        def __call__(self) -> None:
            pass

    for _ in range(2):
        work = Work()
        left = weakref.ref(work)
        threads.run(work)
        del work
        wait_until(lambda left=left: left() is None, "the end of the work")  # type: ignore[misc]
        wait_until(lambda: bool(threads._idle), "an idle thread")
    assert len(threads) == 1


def test_work_does_not_wait_for_a_busy_thread(threads: KeptThreads) -> None:
    frees = [holding(threads) for _ in range(3)]
    assert len(threads) == 3
    frees[1]()
    wait_until(lambda: len(threads._idle) == 1, "an idle thread")
    frees.append(holding(threads))
    assert len(threads) == 3
    for free in frees:
        free()


def test_idle_threads_end_after_a_while() -> None:
    threads = KeptThreads("kept", kept_s=0.0)
    for _ in range(3):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(PATIENCE_S)
    wait_until(lambda: len(threads) == 0, "the end of idle threads")


def test_stop_ends_idle_threads_and_busy_ones_after_their_work(threads: KeptThreads) -> None:
    free, freed = holding(threads), holding(threads)
    freed()
    wait_until(lambda: len(threads._idle) == 1, "an idle thread")
    threads.stop(time.monotonic())
    wait_until(lambda: len(threads) == 1, "the end of the idle thread")
    free()
    threads.stop(time.monotonic() + PATIENCE_S)
    assert len(threads) == 0


def test_thread_that_cannot_start_is_not_counted(
    threads: KeptThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="start"):
        threads.run(lambda: None)
    assert len(threads) == 0
