"""The bounded buffer between the streams of a reader and the training loop.

Knows threads and sizes, nothing of windows or the network. Invariant: at most `max_items` items
and, unless a single one is larger, `max_bytes` bytes are held; closing wakes everybody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Less than a frame of the largest: with one that comes next and those in use, they fit into what a
# stream may read in place, and need not be copied.
LOW_BYTES = 16 << 20


class ElementBuffer(Generic[Item]):
    """A bounded queue whose getters can also be woken by news other than an item."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._low_items = max(1, max_items // 3)
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._news = 0
        self._lock = threading.Lock()
        self._not_full = threading.Condition(self._lock)
        self._not_empty = threading.Condition(self._lock)
        self._low = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def put(self, items: Iterable[tuple[Item, int]]) -> bool:
        """Items with their sizes; waits for room for each. False once closed.

        Getters wake when all are there, not one by one, unless room is lacking.
        """
        new = 0
        with self._lock:
            for item, size_bytes in items:
                while not self._closed and not self._has_room(size_bytes):
                    self._not_empty.notify(new)
                    new = 0
                    self._not_full.wait()
                if self._closed:
                    return False
                self._items.append((item, size_bytes))
                self._bytes += size_bytes
                new += 1
            self._not_empty.notify(new)
        return True

    def get(self, timeout_s: float) -> Item | None:
        """The next item; None after the time-out, a `wake`, or once closed."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            news = self._news
            while not self._items:
                remaining_s = deadline_s - time.monotonic()
                if self._closed or self._news != news or remaining_s <= 0:
                    return None
                self._not_empty.wait(remaining_s)
            item, size_bytes = self._items.popleft()
            self._bytes -= size_bytes
            self._not_full.notify()
            if self._is_low():
                self._low.notify_all()
            return item

    def await_low(self) -> bool:
        """Waits until at most a third as many items are held as may be, and little memory.

        Who fetches items in groups does so then: what is not fetched yet waits where it is, and
        nobody wakes for each item that is taken. False once closed.
        """
        with self._lock:
            while not self._closed and not self._is_low():
                self._low.wait()
            return not self._closed

    def wake(self) -> None:
        """Lets waiting getters look around."""
        with self._lock:
            self._news += 1
            self._not_empty.notify_all()

    def close(self) -> None:
        """Drops what is held and wakes everybody. Idempotent."""
        with self._lock:
            self._closed = True
            self._items.clear()
            self._bytes = 0
            self._not_empty.notify_all()
            self._not_full.notify_all()
            self._low.notify_all()

    def _is_low(self) -> bool:
        return len(self._items) <= self._low_items and self._bytes <= LOW_BYTES

    def _has_room(self, size_bytes: int) -> bool:
        if not self._items:
            return True
        return len(self._items) < self._max_items and self._bytes + size_bytes <= self._max_bytes
