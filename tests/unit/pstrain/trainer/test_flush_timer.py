"""The flush timer's thread sleeps while no work is overdue, and can be closed."""

from __future__ import annotations

import threading

from pstrain.trainer.flush_timer import FlushTimer

DEADLINE_S = 30.0


def test_flush_timer_flushes_until_nothing_is_left_and_again_after_arm() -> None:
    looks = threading.Semaphore(0)
    left = [True, True, False]

    def flush() -> bool:
        looks.release()
        return left.pop(0) if left else False

    flush_timer = FlushTimer(flush, period_s=0.001)
    assert flush_timer._thread is None
    flush_timer.arm()
    for _ in range(3):
        assert looks.acquire(timeout=DEADLINE_S)
    while not flush_timer._is_idle:
        threading.Event().wait(0.001)
    assert not looks.acquire(blocking=False)
    flush_timer.arm()
    assert looks.acquire(timeout=DEADLINE_S)
    flush_timer.close(DEADLINE_S)
    assert not flush_timer._thread.is_alive()
    flush_timer.arm()
    flush_timer.close(DEADLINE_S)


def test_flush_timer_closes_without_having_started() -> None:
    flush_timer = FlushTimer(lambda: False, period_s=0.001)
    flush_timer.close(DEADLINE_S)
    flush_timer.arm()
    assert flush_timer._thread is None
