"""Bounds the long polls that wait at once, and tells the others when to ask again.

A request that waits holds a thread of the server, and those that must not wait, heartbeats above
all, need threads too. Pure: the caller brings the time, and the lock. Invariants: no more wait than
there are seats; those who were sent away come again one after the other, at a rate that does not
grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Who is sent away alone would otherwise be back at once.
_EARLIEST_S: Final = 0.5
# So many that they are not through by then come more often than was meant.
_LATEST_S: Final = 30.0


class Seat:
    """Of one request, once it has to wait."""

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self._is_taken = False

    def take(self) -> bool:
        """Whether the request may wait; a repeat changes nothing."""
        self._is_taken = self._is_taken or self._room.try_enter()
        return self._is_taken

    def leave(self) -> None:
        """The request waits no more."""
        if self._is_taken:
            self._is_taken = False
            self._room.taken -= 1


class WaitingRoom:
    """`seats` for requests that wait; the rest is told to come again, `returns_per_s` of them."""

    def __init__(self, seats: int, returns_per_s: float) -> None:
        self._seats = seats
        self._between_s = 1.0 / returns_per_s
        self._next_s = float("-inf")
        self.taken = 0

    @contextmanager
    def seat(self) -> Iterator[Seat]:
        """For one request, which leaves in the end."""
        seat = Seat(self)
        try:
            yield seat
        finally:
            seat.leave()

    def try_enter(self) -> bool:
        """Takes a seat, if one is free."""
        if self.taken >= self._seats:
            return False
        self.taken += 1
        return True

    def pause_s(self, now_s: float) -> float:
        """After how long the one that finds no seat is to ask again."""
        earliest_s = now_s + _EARLIEST_S
        self._next_s = max(self._next_s + self._between_s, earliest_s)
        if self._next_s > now_s + _LATEST_S:
            self._next_s = earliest_s
        return self._next_s - now_s
