"""Presence of clients, for servers that end when their coordinator has left.

Counts open streams; knows nothing of what they carry. Invariant: a server that nobody has used
yet is not over, however long it waits; one whose program has said that it ended is, at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Presence:
    """A context manager that each user of a server is inside of. Thread-safe.

    ``decides_end``: whether the server ends by it, so that its program shall say when it has.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0
        self._left_at_s: float | None = None
        self._is_dismissed = False
        self.decides_end = False

    def __enter__(self) -> Presence:
        with self._lock:
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            self._left_at_s = self._clock()

    def dismiss(self) -> None:
        """The program that used the server has ended, and nobody else is awaited."""
        with self._lock:
            self._is_dismissed = True

    def during(self, call: Callable[P, T]) -> Callable[P, T]:
        """``call``, whose every run counts as somebody's presence."""

        def present(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return call(*args, **kwargs)

        return present

    def is_over(self, grace_s: float) -> bool:
        """Whether all who came have left, at least ``grace_s`` seconds ago, or for good."""
        with self._lock:
            if self._is_dismissed:
                return True
            if self._inside or self._left_at_s is None:
                return False
            return self._clock() - self._left_at_s >= grace_s
