"""The thread that looks after overdue work sleeps while there is none, and can be ended."""

from __future__ import annotations

import threading

from pstrain.trainer.overdue import Overdue

DEADLINE_S = 30.0


def test_it_looks_until_nothing_is_left_and_again_once_something_is_noted() -> None:
    looks = threading.Semaphore(0)
    left = [True, True, False]

    def look() -> bool:
        looks.release()
        return left.pop(0) if left else False

    overdue = Overdue(look, period_s=0.001)
    assert overdue._thread is None
    overdue.note()
    for _ in range(3):
        assert looks.acquire(timeout=DEADLINE_S)
    while not overdue._is_idle:
        threading.Event().wait(0.001)
    assert not looks.acquire(blocking=False)
    overdue.note()
    assert looks.acquire(timeout=DEADLINE_S)
    overdue.close(DEADLINE_S)
    assert not overdue._thread.is_alive()
    overdue.note()
    overdue.close(DEADLINE_S)


def test_it_ends_although_it_never_began() -> None:
    overdue = Overdue(lambda: False, period_s=0.001)
    overdue.close(DEADLINE_S)
    overdue.note()
    assert overdue._thread is None
