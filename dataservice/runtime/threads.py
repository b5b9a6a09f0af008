"""Threads and queues that can always be stopped.

Responsible for the three building blocks every long-lived part of a server is made of: a thread
with an owner and a bounded stop, a queue bounded in items and in bytes, and the watchdog that
ends waits which the operating system or a C library cannot bound by itself.

Knows nothing of the network or of what flows through it. Invariant: no call blocks past its
timeout, and closing a queue or stopping a thread wakes everything that waits on it.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from dataservice.errors import CancelledError, DeadlineExceededError, InvalidArgumentError

__all__ = ["BoundedQueue", "Deadline", "StoppableThread", "Watchdog", "end_all"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NEVER_S = float("inf")


def end_all(
    busy: Mapping[T, threading.Thread],
    cut: Callable[[T], object],
    *,
    grace_s: float,
    deadline_s: float,
) -> int:
    """Lets threads finish for `grace_s`, cuts what each of them serves, and waits for them.

    Until `deadline_s` of the monotonic clock; returns how many have not ended by then.
    """
    grace_end_s = min(time.monotonic() + grace_s, deadline_s)
    for thread in busy.values():
        thread.join(max(0.0, grace_end_s - time.monotonic()))
    for served in busy:
        cut(served)
    for thread in busy.values():
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return sum(thread.is_alive() for thread in busy.values())


class StoppableThread:
    """A named daemon thread that an owner can stop.

    `target` receives the stop event and returns soon after it is set. An exception that leaves
    `target` is logged with its traceback and kept in `failure`; `on_failure`, when given, is
    called with it on the thread.
    """

    def __init__(
        self,
        target: Callable[[threading.Event], None],
        *,
        owner: str,
        name: str,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.name = f"{owner}:{name}"
        self.stop_event = threading.Event()
        self.failure: BaseException | None = None
        self._target = target
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> StoppableThread:
        """Start the thread and return this object."""
        self._thread.start()
        return self

    def is_alive(self) -> bool:
        """Whether the thread has been started and has not ended."""
        return self._thread.is_alive()

    def request_stop(self) -> None:
        """Set the stop event without waiting. Idempotent, any thread."""
        self.stop_event.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Set the stop event and wait. False, and a warning, when the thread still runs.

        Returns True at once for a thread that was never started, and does not wait when called
        on the thread itself.
        """
        self.stop_event.set()
        if self._thread.ident is None:
            return True
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("thread %s still runs %.1f s after its stop", self.name, timeout_s)
            return False
        return True

    def _run(self) -> None:
        try:
            self._target(self.stop_event)
        except BaseException as error:
            self.failure = error
            logger.exception("thread %s ended with an error", self.name)
            if self._on_failure is not None:
                self._on_failure(error)


class BoundedQueue(Generic[T]):
    """A first-in first-out queue bounded in items and in bytes. Thread safe.

    An item larger than `max_bytes` is accepted into an empty queue, so that no item can be
    stuck. `max_bytes` None means that only the number of items is bounded.
    """

    def __init__(self, max_items: int, max_bytes: int | None = None) -> None:
        if max_items < 1:
            raise InvalidArgumentError(f"max_items must be at least 1, got {max_items}")
        if max_bytes is not None and max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes must be at least 1, got {max_bytes}")
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._entries: deque[tuple[T, int]] = deque()
        self._size_bytes = 0
        self._closed = False
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of the items held."""
        return self._size_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called; items put before it may still be held."""
        return self._closed

    def put(self, item: T, size_bytes: int = 0, *, timeout_s: float) -> None:
        """Append `item`, waiting for room.

        Raises DeadlineExceededError when there was no room in time and CancelledError when the
        queue is or becomes closed.
        """
        with self._not_full:
            if not self._not_full.wait_for(lambda: self._may_put(size_bytes), timeout_s):
                raise DeadlineExceededError(
                    f"no room in a queue of {len(self._entries)} items and {self._size_bytes} "
                    f"bytes within {timeout_s} s"
                )
            if self._closed:
                raise CancelledError("put into a closed queue")
            self._append(item, size_bytes)

    def try_put(self, item: T, size_bytes: int = 0) -> bool:
        """Append `item` when there is room now. CancelledError when the queue is closed."""
        with self._lock:
            if self._closed:
                raise CancelledError("put into a closed queue")
            if not self._has_room(size_bytes):
                return False
            self._append(item, size_bytes)
            return True

    def get(self, *, timeout_s: float) -> T:
        """Remove and return the oldest item, waiting for one.

        A closed queue still gives what it holds, then raises CancelledError.
        DeadlineExceededError when nothing arrived in time.
        """
        with self._not_empty:
            if not self._not_empty.wait_for(lambda: self._entries or self._closed, timeout_s):
                raise DeadlineExceededError(f"nothing arrived in a queue within {timeout_s} s")
            if not self._entries:
                raise CancelledError("get from a closed queue")
            item, size_bytes = self._entries.popleft()
            self._size_bytes -= size_bytes
            # Waiters want different amounts of room, so the first may not be the one that fits.
            self._not_full.notify_all()
            return item

    def close(self, *, discard: bool = False) -> None:
        """Refuse further puts and wake all waiters; drop what is held if `discard`. Idempotent."""
        with self._lock:
            self._closed = True
            if discard:
                self._entries.clear()
                self._size_bytes = 0
            self._not_empty.notify_all()
            self._not_full.notify_all()

    def _may_put(self, size_bytes: int) -> bool:
        return self._closed or self._has_room(size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        if not self._entries:
            return True
        if len(self._entries) >= self._max_items:
            return False
        return self._max_bytes is None or self._size_bytes + size_bytes <= self._max_bytes

    def _append(self, item: T, size_bytes: int) -> None:
        self._entries.append((item, size_bytes))
        self._size_bytes += size_bytes
        self._not_empty.notify()


class Deadline:
    """Bounds a repeated wait by calling `on_expiry` from the watchdog when it takes too long.

    `on_expiry` must be thread safe, must not block, and should make the wait end. Arming costs
    one comparison in the usual case, so it can guard every message of a stream. One wait at a
    time; use one Deadline for each thread that waits.
    """

    __slots__ = ("__weakref__", "_on_expiry", "_watchdog", "at_s", "expired", "timeout_s")

    def __init__(self, on_expiry: Callable[[], None], watchdog: Watchdog) -> None:
        self.at_s = _NEVER_S
        self.timeout_s = _NEVER_S
        self.expired = False
        self._on_expiry = on_expiry
        self._watchdog = watchdog

    def arm(self, timeout_s: float) -> None:
        """Start a wait of at most `timeout_s`."""
        at_s = time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        self.at_s = at_s
        if at_s < self._watchdog.next_wake_s:
            self._watchdog.wake_by(at_s)

    def disarm(self) -> None:
        """End the wait. `expired` tells whether it was cut short."""
        self.at_s = _NEVER_S

    def expire(self) -> None:
        """Mark the wait as expired and end it; called by the watchdog."""
        self.at_s = _NEVER_S
        self.expired = True
        self._on_expiry()


class Watchdog:
    """One thread that expires the armed deadlines of many waits.

    It sleeps until the earliest deadline seen at its last scan; a wait that is armed with a later
    one does not wake it. `shared()` is the process's own, which lives as long as the process.
    """

    _shared: Watchdog | None = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.next_wake_s = _NEVER_S
        self._deadlines: weakref.WeakSet[Deadline] = weakref.WeakSet()
        self._wakeup = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @classmethod
    def shared(cls) -> Watchdog:
        """The watchdog of this process, made on first use."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def deadline(self, on_expiry: Callable[[], None]) -> Deadline:
        """A new Deadline. The watchdog holds it weakly: dropping it is enough to end it."""
        deadline = Deadline(on_expiry, self)
        with self._wakeup:
            self._deadlines.add(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
        return deadline

    def wake_by(self, at_s: float) -> None:
        """Make sure that the next scan is not after `at_s`."""
        with self._wakeup:
            if at_s < self.next_wake_s:
                self.next_wake_s = at_s
            self._wakeup.notify()

    def stop(self) -> None:
        """End the thread; deadlines armed later never expire."""
        with self._wakeup:
            self._stopped = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._wakeup:
                if self._stopped:
                    return
                due = self._scan()
                if not due:
                    remaining_s = self.next_wake_s - time.monotonic()
                    self._wakeup.wait(None if remaining_s == _NEVER_S else max(remaining_s, 0.0))
            for deadline in due:
                try:
                    deadline.expire()
                except Exception:
                    logger.exception("the action of an expired deadline failed")
            del due

    def _scan(self) -> list[Deadline]:
        # From here on every arming thread takes the slow path and waits for the lock, so an
        # instant is either seen by this scan or lowers next_wake_s after it.
        self.next_wake_s = _NEVER_S
        now_s = time.monotonic()
        armed = [(deadline.at_s, deadline) for deadline in self._deadlines]
        self.next_wake_s = min((at_s for at_s, _ in armed if at_s > now_s), default=_NEVER_S)
        return [deadline for at_s, deadline in armed if at_s <= now_s]
