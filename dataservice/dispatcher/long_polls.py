"""Bounds the long polls that wait at once, and tells further requests when to ask again.

A waiting request holds a thread of the server, and requests that must not wait, heartbeats above
all, need threads too. Pure: the caller passes the time and holds the lock. Invariants: no more
requests wait than there are slots; refused requests come again one after the other, at a rate that
does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The shortest pause; without it a request that is refused alone would be back at once.
_EARLIEST_S: Final = 0.5
# The longest pause; if it does not suffice for all requests, they return more often than intended.
_LATEST_S: Final = 30.0


class PollSlot:
    """The slot of one request, which it takes once it has to wait."""

    def __init__(self, polls: LongPolls) -> None:
        self._polls = polls
        self._is_taken = False

    def take(self) -> bool:
        """Takes the slot; returns True if the request may wait. Idempotent."""
        self._is_taken = self._is_taken or self._polls.try_acquire()
        return self._is_taken

    def leave(self) -> None:
        """Frees the slot if it is taken."""
        if self._is_taken:
            self._is_taken = False
            self._polls.taken -= 1


class LongPolls:
    """`slots` for waiting requests; refused ones are told to return, `returns_per_s` of them."""

    def __init__(self, slots: int, returns_per_s: float) -> None:
        self._slots = slots
        self._between_s = 1.0 / returns_per_s
        self._next_s = float("-inf")
        self.taken = 0

    @contextmanager
    def slot(self) -> Iterator[PollSlot]:
        """Provides a request's slot, and frees it at the end of the scope."""
        slot = PollSlot(self)
        try:
            yield slot
        finally:
            slot.leave()

    def try_acquire(self) -> bool:
        """Takes a slot if one is free; returns whether it did."""
        if self.taken >= self._slots:
            return False
        self.taken += 1
        return True

    def pause_s(self, now_s: float) -> float:
        """Returns the time after which a refused request has to ask again."""
        earliest_s = now_s + _EARLIEST_S
        self._next_s = max(self._next_s + self._between_s, earliest_s)
        if self._next_s > now_s + _LATEST_S:
            self._next_s = earliest_s
        return self._next_s - now_s
