"""Limits the listings of sources: one at a time for a dataset, and a bounded queue of waiters.

Knows only what that is called which is listed. Invariants: for one job, or one dataset, nobody
lists beside another; calls that must not wait find threads, for those who wait for a plan are
limited in number and in time; nothing is kept of what nobody lists. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dataservice.config import PLAN_WAIT_S
from dataservice.errors import UnavailableError


class Listings:
    """`max_planners`: so many at once list, or wait for others who do."""

    def __init__(self, max_planners: int) -> None:
        self._planners = threading.BoundedSemaphore(max_planners)
        self._turns: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Scope of the only one who lists for this; waits for the one before.

        UnavailableError where there is no room to wait, or that one takes long: whoever waits makes
        room before it asks again.
        """
        if self._planners.acquire(blocking=False):
            try:
                with self._turn(what) as turn:
                    if turn.acquire(timeout=PLAN_WAIT_S):
                        try:
                            yield
                            return
                        finally:
                            turn.release()
            finally:
                self._planners.release()
        raise UnavailableError(
            f"the sources of {what} are being listed, or others are, for as many clients as may "
            "wait for that at once; try again"
        )

    @contextmanager
    def _turn(self, what: str) -> Iterator[threading.Lock]:
        with self._lock:
            self._users[what] += 1
            turn = self._turns.setdefault(what, threading.Lock())
        try:
            yield turn
        finally:
            with self._lock:
                self._users[what] -= 1
                if not self._users[what]:
                    del self._users[what], self._turns[what]
