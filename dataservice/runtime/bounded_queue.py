"""A queue between threads that is bounded in items and in bytes, and can be closed.

Knows nothing of what flows through it. Invariant: no call blocks past its time-out, and closing
the queue wakes every thread that waits on it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from dataservice.errors import CancelledError, DeadlineExceededError, InvalidArgumentError

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """A first-in first-out queue bounded in items and in bytes. Thread safe.

    An item larger than `max_bytes` is accepted into an empty queue, so that no item waits for ever.
    `max_bytes` None means that only the number of items is bounded.
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
        """The sum of the sizes of the items held."""
        return self._size_bytes

    @property
    def closed(self) -> bool:
        """True if `close` was called; items put before it may still be held."""
        return self._closed

    def put(self, item: T, size_bytes: int = 0, *, timeout_s: float) -> None:
        """Appends `item`; waits for room.

        Raises DeadlineExceededError if there was no room in time, and CancelledError if the queue
        is or becomes closed.
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
        """Appends `item` if there is room now; raises CancelledError if the queue is closed."""
        with self._lock:
            if self._closed:
                raise CancelledError("put into a closed queue")
            if not self._has_room(size_bytes):
                return False
            self._append(item, size_bytes)
            return True

    def get(self, *, timeout_s: float) -> T:
        """Removes and returns the oldest item; waits for one.

        A closed queue still returns the items it holds, then raises CancelledError. Raises
        DeadlineExceededError if nothing arrived in time.
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
        """Refuses further puts and wakes all waiters; `discard` drops all items. Idempotent."""
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
