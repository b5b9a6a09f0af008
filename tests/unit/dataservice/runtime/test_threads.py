"""Queues, threads and deadlines end when told to; conditions are awaited, never slept for."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataservice.errors import CancelledError, DeadlineExceededError, InvalidArgumentError
from dataservice.runtime.bounded_queue import BoundedQueue
from dataservice.runtime.exchanges.watchdog import Watchdog
from dataservice.runtime.threads import StoppableThread, wait_until

PATIENCE_S = 10.0


def in_thread(function: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def finished(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


# --- BoundedQueue


def test_queue_items_leave_in_order_of_arrival() -> None:
    queue: BoundedQueue[int] = BoundedQueue(max_items=3)
    for item in (1, 2, 3):
        queue.put(item, timeout_s=0.0)
    assert [queue.get(timeout_s=0.0) for _ in range(3)] == [1, 2, 3]


def test_queue_refuses_items_beyond_its_item_limit() -> None:
    queue: BoundedQueue[int] = BoundedQueue(max_items=2)
    assert queue.try_put(1)
    assert queue.try_put(2)
    assert not queue.try_put(3)
    with pytest.raises(DeadlineExceededError, match="2 items"):
        queue.put(3, timeout_s=0.0)


def test_queue_is_bounded_in_bytes_and_passes_oversized_item_alone() -> None:
    queue: BoundedQueue[str] = BoundedQueue(max_items=10, max_bytes=100)
    assert queue.try_put("huge", 1000)
    assert queue.size_bytes == 1000
    assert not queue.try_put("tiny", 1)
    assert queue.get(timeout_s=0.0) == "huge"
    assert queue.try_put("a", 60)
    assert not queue.try_put("b", 41)
    assert queue.try_put("c", 40)
    assert queue.size_bytes == 100


def test_get_from_empty_queue_times_out() -> None:
    with pytest.raises(DeadlineExceededError):
        BoundedQueue[int](max_items=1).get(timeout_s=0.0)


def test_put_waits_for_room_and_get_waits_for_items() -> None:
    queue: BoundedQueue[int] = BoundedQueue(max_items=1)
    received: list[int] = []

    def consume() -> None:
        received.extend(queue.get(timeout_s=PATIENCE_S) for _ in range(200))

    consumer = in_thread(consume)
    for item in range(200):
        queue.put(item, timeout_s=PATIENCE_S)
    assert finished(consumer)
    assert received == list(range(200))


def test_small_put_is_admitted_while_larger_put_still_waits() -> None:
    queue: BoundedQueue[str] = BoundedQueue(max_items=10, max_bytes=100)
    queue.put("first", 50, timeout_s=0.0)
    queue.put("second", 50, timeout_s=0.0)
    big = in_thread(lambda: queue.put("big", 90, timeout_s=PATIENCE_S))
    small = in_thread(lambda: queue.put("small", 50, timeout_s=PATIENCE_S))
    assert queue.get(timeout_s=0.0) == "first"
    assert finished(small)
    queue.get(timeout_s=0.0)
    queue.get(timeout_s=0.0)
    assert finished(big)


def test_closing_queue_wakes_all_waiters() -> None:
    full: BoundedQueue[int] = BoundedQueue(max_items=1)
    full.put(0, timeout_s=0.0)
    empty: BoundedQueue[int] = BoundedQueue(max_items=1)
    outcomes: list[type[BaseException]] = []

    def record(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except CancelledError as error:
            outcomes.append(type(error))

    waiters = [in_thread(record, lambda: full.put(1, timeout_s=PATIENCE_S)) for _ in range(3)]
    waiters += [in_thread(record, lambda: empty.get(timeout_s=PATIENCE_S)) for _ in range(3)]
    full.close()
    empty.close()
    assert all(finished(waiter) for waiter in waiters)
    assert outcomes == [CancelledError] * 6


def test_closed_queue_hands_out_its_items_unless_discarded() -> None:
    kept: BoundedQueue[int] = BoundedQueue(max_items=2)
    kept.put(1, 10, timeout_s=0.0)
    kept.close()
    kept.close()
    assert kept.closed
    assert kept.get(timeout_s=0.0) == 1
    with pytest.raises(CancelledError):
        kept.get(timeout_s=PATIENCE_S)
    with pytest.raises(CancelledError):
        kept.try_put(2)
    dropped: BoundedQueue[int] = BoundedQueue(max_items=2)
    dropped.put(1, 10, timeout_s=0.0)
    dropped.close(discard=True)
    assert dropped.size_bytes == 0
    with pytest.raises(CancelledError):
        dropped.get(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(("items", "size"), [(0, None), (-1, None), (1, 0)])
def test_queue_bounds_below_one_are_refused(items: int, size: int | None) -> None:
    with pytest.raises(InvalidArgumentError, match="must be at least 1"):
        BoundedQueue[int](items, size)


class QueueModel(RuleBasedStateMachine):
    """Compares the queue with a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: BoundedQueue[int] = BoundedQueue(max_items=4, max_bytes=100)
        self.model: deque[tuple[int, int]] = deque()
        self.next_item = 0

    @rule(size=st.integers(0, 150))
    def put(self, size: int) -> None:
        held = sum(other for _, other in self.model)
        fits = not self.model or (len(self.model) < 4 and held + size <= 100)
        assert self.queue.try_put(self.next_item, size) == fits
        if fits:
            self.model.append((self.next_item, size))
        self.next_item += 1

    @precondition(lambda self: self.model)
    @rule()
    def get(self) -> None:
        assert self.queue.get(timeout_s=0.0) == self.model.popleft()[0]

    @precondition(lambda self: not self.model)
    @rule()
    def get_nothing(self) -> None:
        with pytest.raises(DeadlineExceededError):
            self.queue.get(timeout_s=0.0)

    @invariant()
    def sizes_agree(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.size_bytes == sum(size for _, size in self.model)


TestQueueModel = QueueModel.TestCase


# --- StoppableThread


def test_stoppable_thread_runs_until_stopped() -> None:
    entered = threading.Event()

    def work(stop: threading.Event) -> None:
        entered.set()
        stop.wait(PATIENCE_S)

    thread = StoppableThread(work, owner="worker", name="prefetch").start()
    assert entered.wait(PATIENCE_S)
    assert thread.is_alive()
    assert thread.name == "worker:prefetch"
    assert thread.stop(PATIENCE_S)
    assert not thread.is_alive()
    assert thread.stop(PATIENCE_S)


def test_stop_of_unresponsive_thread_times_out_with_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    thread = StoppableThread(lambda _stop: release.wait(PATIENCE_S), owner="o", name="deaf")  # type: ignore[arg-type]
    thread.start()
    assert not thread.stop(0.01)
    assert "o:deaf still runs" in caplog.text
    release.set()
    assert thread.stop(PATIENCE_S)


def test_thread_failure_is_kept_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[BaseException] = []

    def work(_stop: threading.Event) -> None:
        raise ZeroDivisionError("in the thread")

    thread = StoppableThread(work, owner="o", name="t", on_failure=reported.append).start()
    assert thread.stop(PATIENCE_S)
    assert isinstance(thread.failure, ZeroDivisionError)
    assert reported == [thread.failure]
    assert "ZeroDivisionError: in the thread" in caplog.text


def test_thread_can_stop_itself_and_unstarted_thread_can_be_stopped() -> None:
    outcome: list[bool] = []
    thread = StoppableThread(lambda _stop: outcome.append(thread.stop()), owner="o", name="t")
    thread.start()
    assert thread.stop(PATIENCE_S)
    assert outcome == [False]
    assert StoppableThread(lambda _stop: None, owner="o", name="u").stop(PATIENCE_S)


# --- Watchdog


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog()
    yield made
    made.stop()


def test_armed_deadline_expires_once(watchdog: Watchdog) -> None:
    expired, scanned_again = threading.Semaphore(0), threading.Event()
    deadline, later = watchdog.deadline(expired.release), watchdog.deadline(scanned_again.set)
    assert not deadline.expired
    deadline.arm(0.001)
    assert expired.acquire(timeout=PATIENCE_S)
    assert deadline.expired
    later.arm(0.001)
    assert scanned_again.wait(PATIENCE_S)
    watchdog.stop()
    assert not expired.acquire(blocking=False)


def test_disarmed_deadline_does_not_expire(watchdog: Watchdog) -> None:
    fired = threading.Event()
    later = watchdog.deadline(fired.set)
    disarmed = watchdog.deadline(lambda: pytest.fail("a disarmed deadline expired"))
    disarmed.arm(PATIENCE_S)
    disarmed.disarm()
    later.arm(0.001)
    assert fired.wait(PATIENCE_S)
    assert not disarmed.expired


def test_nearer_deadline_wakes_watchdog_that_waits_for_far_deadline(watchdog: Watchdog) -> None:
    fired = threading.Event()
    far = watchdog.deadline(lambda: None)
    near = watchdog.deadline(fired.set)
    far.arm(1000.0)
    near.arm(0.001)
    assert fired.wait(PATIENCE_S)
    assert not far.expired


def test_failing_deadline_action_does_not_stop_other_deadlines(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    expired = threading.Semaphore(0)

    def fail() -> None:
        expired.release()
        raise ZeroDivisionError("in an action")

    deadlines = [watchdog.deadline(expired.release if i % 2 else fail) for i in range(50)]
    threads = [in_thread(deadline.arm, 0.001) for deadline in deadlines]
    assert all(finished(thread) for thread in threads)
    for _ in deadlines:
        assert expired.acquire(timeout=PATIENCE_S)
    assert "in an action" in caplog.text


def test_watchdog_does_not_keep_deadlines_alive(watchdog: Watchdog) -> None:
    deadline = watchdog.deadline(lambda: None)
    gone = weakref.ref(deadline)
    del deadline
    assert gone() is None


def test_process_shares_one_watchdog() -> None:
    assert Watchdog.shared() is Watchdog.shared()


# --- wait_until


def test_wait_until_asks_again_until_condition_holds() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda _timeout_s: next(answers))
    assert next(answers, None) is None


def test_wait_until_waits_in_short_parts_of_its_time_out() -> None:
    waited: list[float] = []

    def never(timeout_s: float) -> bool:
        waited.append(timeout_s)
        return len(waited) == 3

    assert wait_until(never, 1e6)
    assert max(waited) <= 1.0
    assert not wait_until(threading.Event().wait, 0.0)
    assert wait_until(lambda timeout_s: timeout_s == 0.0, 0.0)
