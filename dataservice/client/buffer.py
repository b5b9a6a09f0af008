"""The bounded buffer between the streams of a reader and the training loop.

Responsible for back-pressure between threads, by the number and size of items. Knows no windows and
no network. Invariant: it holds at most `max_items` items and, unless a single one is larger, at
most `max_bytes` bytes; closing wakes every waiting thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Less than a frame of the largest kind. Together with the next frame and those in use, these bytes
# fit into what a stream may read in place, so that nothing has to be copied.
LOW_BYTES = 16 << 20


class ElementBuffer(Generic[Item]):
    """A bounded queue whose getters can also be woken by other news than an item."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._low_items = max(1, max_items // 3)
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._wakes = 0
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
        """Adds items, given with their sizes, and waits for room for each; False once closed.

        Wakes getters after all items were added, or earlier if there is no room for one.
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

    @property
    def wakes(self) -> int:
        """The number of `wake` calls so far."""
        return self._wakes

    def get(self, timeout_s: float, wakes: int | None = None) -> Item | None:
        """Returns the next item; None after the time-out, after a `wake`, or once closed.

        A caller that waits for other news too gives the `wakes` there were before it looked for
        them, so that no `wake` since then is missed.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            wakes = self._wakes if wakes is None else wakes
            while not self._items:
                remaining_s = deadline_s - time.monotonic()
                if self._closed or self._wakes != wakes or remaining_s <= 0:
                    return None
                self._not_empty.wait(remaining_s)
            item, size_bytes = self._items.popleft()
            self._bytes -= size_bytes
            self._not_full.notify()
            if self._is_low():
                self._low.notify_all()
            return item

    def await_low(self) -> bool:
        """Waits for the low-water mark: a third of `max_items`, and `LOW_BYTES`; False once closed.

        A producer that fetches items in groups fetches the next group then. Until then the items
        wait at their source, and the producer does not wake for every item that is taken.
        """
        with self._lock:
            while not self._closed and not self._is_low():
                self._low.wait()
            return not self._closed

    def wake(self) -> None:
        """Makes waiting getters return, so that they can check for other news."""
        with self._lock:
            self._wakes += 1
            self._not_empty.notify_all()

    def close(self) -> None:
        """Drops all items and wakes every waiting thread. Idempotent."""
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
