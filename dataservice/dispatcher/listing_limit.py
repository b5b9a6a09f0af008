"""Limits the listings of sources: one at a time per job or dataset, and a bounded queue of waiters.

Knows only the name of what is listed. Invariants: no two calls list for the same name at once; the
calls that wait for a plan are limited in number and in time, so that other calls find threads;
nothing is kept for names that nobody lists. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dataservice.config import PLAN_WAIT_S
from dataservice.errors import UnavailableError


class ListingLimit:
    """Turns for listing; at most `max_planners` calls at once list or wait for their turn."""

    def __init__(self, max_planners: int) -> None:
        self._planners = threading.BoundedSemaphore(max_planners)
        self._turns: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        """Scope in which the caller alone lists sources for `what`; waits for the call before it.

        UnavailableError if too many calls list or wait, or if the turn takes longer than
        `PLAN_WAIT_S` to come: then the caller frees its place and may ask again.
        """
        refusal = UnavailableError(
            f"cannot list the sources of {what} yet: they are being listed for another "
            "client, or as many clients as allowed wait for listings; try again"
        )
        with (
            _held(self._planners, 0, refusal),
            self._turn(what) as turn,
            _held(turn, PLAN_WAIT_S, refusal),
        ):
            yield

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


@contextmanager
def _held(
    lock: threading.Lock | threading.Semaphore, wait_s: float, refusal: Exception
) -> Iterator[None]:
    if not lock.acquire(timeout=wait_s):
        raise refusal
    try:
        yield
    finally:
        lock.release()
