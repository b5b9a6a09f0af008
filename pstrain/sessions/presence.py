"""Counts a server's clients, so that it can end when its coordinator has left.

Counts open streams; knows nothing of what they carry. Invariant: a server that has had no client
yet does not end, however long it waits; a server whose program has reported its end ends at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Presence:
    """The presence of a server's clients: each is inside this context manager. Thread-safe.

    ``decides_end``: True if the server ends once :meth:`is_over`; the program then has to tell
    the server when it ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0
        self._left_at_s: float | None = None
        self._has_program_ended = False
        self.decides_end = False

    def __enter__(self) -> Presence:
        with self._lock:
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            self._left_at_s = self._clock()

    def record_program_end(self) -> None:
        """Records that the program that used the server has ended: no other client is awaited."""
        with self._lock:
            self._has_program_ended = True

    def is_over(self, grace_s: float) -> bool:
        """True if the last client left at least ``grace_s`` ago, or the program has ended."""
        with self._lock:
            if self._has_program_ended:
                return True
            if self._inside or self._left_at_s is None:
                return False
            return self._clock() - self._left_at_s >= grace_s
