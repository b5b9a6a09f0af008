"""An interrupt is raised where a thread waits, or once it has released the lock."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pstrain.coordinator.quiet_condition import QuietCondition


@pytest.fixture
def condition() -> Iterator[QuietCondition]:
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield QuietCondition()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, given)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def is_free(condition: QuietCondition) -> bool:
    """True if another thread can take the lock."""
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(condition.acquire(blocking=False)))
    thread.start()
    thread.join()
    return taken == [True]


def test_holder_is_not_interrupted(condition: QuietCondition) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117
        with condition:
            with condition:
                interrupt()
                done.append("inner")
            done.append("outer")
    assert done == ["inner", "outer"]
    assert is_free(condition)


def test_wait_lets_an_interrupt_through(condition: QuietCondition) -> None:
    with pytest.raises(KeyboardInterrupt), condition:  # noqa: PT012
        interrupt()
        condition.wait()
    assert is_free(condition)


def test_interrupt_ends_a_wait(condition: QuietCondition) -> None:
    def interrupt_waiter() -> None:
        with condition:  # free once the main thread waits
            interrupt()

    other = threading.Thread(target=interrupt_waiter)
    with pytest.raises(KeyboardInterrupt), condition:  # noqa: PT012
        other.start()
        condition.wait(60.0)
    other.join()
    assert is_free(condition)


def test_second_interrupt_is_raised_at_once(condition: QuietCondition) -> None:
    with pytest.raises(KeyboardInterrupt), condition:  # noqa: PT012
        interrupt()
        interrupt()
        pytest.fail("went on after the second interrupt")
    assert is_free(condition)


def test_wait_ends_with_a_notice_or_its_time(condition: QuietCondition) -> None:
    def notify() -> None:
        with condition:
            condition.notify_all()

    other = threading.Thread(target=notify)
    with condition:
        other.start()
        assert condition.wait(60.0)
        assert not condition.wait(0.0)
        assert not condition.wait_for(lambda: False, 0.0)
    other.join()


def test_notice_that_comes_as_a_slice_of_the_wait_ends_is_not_missed(
    condition: QuietCondition,
) -> None:
    told = []

    def tell() -> None:
        with condition:
            # The slice of the main thread, of 0.1 s, ends while this thread has the lock.
            threading.Event().wait(0.5)
            told.append("news")
            condition.notify_all()

    other = threading.Thread(target=tell)
    with condition:
        other.start()
        began_s = time.monotonic()
        assert condition.wait_for(lambda: told, 60.0)
    assert time.monotonic() - began_s < 30.0
    other.join()


def test_program_with_its_own_handler_waits_without_time_limit() -> None:
    given = signal.signal(signal.SIGINT, signal.SIG_IGN)
    condition = QuietCondition()

    def notify() -> None:
        with condition:
            condition.notify_all()

    other = threading.Thread(target=notify)
    try:
        with condition:
            other.start()
            assert condition.wait()
    finally:
        signal.signal(signal.SIGINT, given)
    other.join()


def test_second_interrupt_ends_the_wait_for_the_lock(condition: QuietCondition) -> None:
    is_held, is_raised = threading.Event(), threading.Event()

    def interrupt_while_holding() -> None:
        with condition:
            is_held.set()
            while not is_raised.wait(0.01) and not condition._interrupts._holds:
                pass
            interrupt()
            while not is_raised.wait(0.01) and not condition._interrupts._came:
                pass
            interrupt()
            is_raised.wait(60.0)

    other = threading.Thread(target=interrupt_while_holding)
    other.start()
    is_held.wait()
    with pytest.raises(KeyboardInterrupt), condition:
        pytest.fail("took a lock that another thread holds")
    is_raised.set()
    other.join()
    test_holder_is_not_interrupted(condition)


def test_program_that_handles_interrupts_itself_keeps_its_handler() -> None:
    seen = []
    given = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with QuietCondition():
            interrupt()
            assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, given)
