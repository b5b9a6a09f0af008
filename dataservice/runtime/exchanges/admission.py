"""Which of the clients that sent a request are answered now: a bounded number, in order of arrival.

All threads of a process take turns at the interpreter, and each one that waits for it takes time
from the others. So a burst of hundreds of requests is answered sooner, and more evenly, by a few
threads. Pure: knows no threads, no sockets and no clock. Invariant: nobody waits for those that are
stuck, with a disk or with a client that does not read, because who is answered slowly does not
count.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Admission(Generic[T]):
    """Admits ``at_once`` clients, not counting those admitted ``slow_s`` ago. Not thread-safe."""

    def __init__(self, at_once: int, slow_s: float) -> None:
        self.at_once = at_once
        self.slow_s = slow_s
        self._waiting: deque[T] = deque()
        self._began_s: dict[T, float] = {}  # in order of time

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, client: T) -> None:
        """Puts a client with a request at the end of those that wait."""
        self._waiting.append(client)

    def admit(self, now_s: float) -> T | None:
        """Returns the client to answer next; None if nobody waits, or enough are being answered."""
        if not self._waiting or self._quick(now_s) >= self.at_once:
            return None
        client = self._waiting.popleft()
        self._began_s[client] = now_s
        return client

    def end(self, client: T) -> None:
        """Notes that an admitted client was answered."""
        del self._began_s[client]

    def put_back(self, client: T) -> None:
        """Lets an admitted client wait again, before all others."""
        del self._began_s[client]
        self._waiting.appendleft(client)

    def take_waiting(self) -> list[T]:
        """Returns the clients that wait, which wait no more."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _quick(self, now_s: float) -> int:
        newest_first = reversed(self._began_s.values())
        recent = itertools.takewhile(lambda began_s: now_s - began_s < self.slow_s, newest_first)
        return sum(1 for _ in recent)
