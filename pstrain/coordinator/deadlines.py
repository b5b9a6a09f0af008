"""Deadlines of closures: a heap of deadlines, and the thread that reports those that have passed.

Knows only the number of a closure. Invariant: a deadline is reported at most once, and never after
it was dropped; memory is bounded by the closures that have a deadline and have not ended.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable


class DeadlineHeap:
    """Deadlines by closure. Pure; not thread-safe."""

    def __init__(self) -> None:
        self._at_s: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    @property
    def next_s(self) -> float | None:
        """The earliest deadline; perhaps of a closure that was dropped."""
        return self._heap[0][0] if self._heap else None

    def add(self, closure: int, at_s: float) -> None:
        self._at_s[closure] = at_s
        heapq.heappush(self._heap, (at_s, closure))

    def drop(self, closure: int) -> None:
        """Drops the deadline of a closure that has ended."""
        if self._at_s.pop(closure, None) is None:
            return
        if len(self._heap) > 2 * len(self._at_s) + 64:
            self._heap = [(at_s, closure) for closure, at_s in self._at_s.items()]
            heapq.heapify(self._heap)

    def due(self, now_s: float) -> list[int]:
        """Removes and returns the closures whose deadline has passed, earliest first."""
        closures = []
        while self._heap and self._heap[0][0] <= now_s:
            _, closure = heapq.heappop(self._heap)
            if self._at_s.pop(closure, None) is not None:
                closures.append(closure)
        return closures

    def __len__(self) -> int:
        return len(self._at_s)


class Deadlines:
    """Reports deadlines, in a thread of its own from the first deadline on. Thread-safe.

    ``expire`` is called in that thread, with no lock held, with the closures that are too late.
    """

    def __init__(self, expire: Callable[[list[int]], None]) -> None:
        self._expire = expire
        self._heap = DeadlineHeap()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, closure: int, at_s: float) -> None:
        with self._changed:
            next_s = self._heap.next_s
            self._heap.add(closure, at_s)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            elif next_s is None or at_s < next_s:
                self._changed.notify_all()

    def drop(self, closure: int) -> None:
        """Drops the deadline of a closure that has ended."""
        with self._changed:
            self._heap.drop(closure)

    def close(self, timeout_s: float = 0.0) -> None:
        """Ends the thread, and waits at most ``timeout_s`` for it. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if timeout_s and thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                closures = self._heap.due(time.monotonic())
                if not closures:
                    next_s = self._heap.next_s
                    wait_s = None if next_s is None else next_s - time.monotonic()
                    self._changed.wait(wait_s if wait_s is None else max(wait_s, 0.001))
                    continue
            self._expire(closures)
