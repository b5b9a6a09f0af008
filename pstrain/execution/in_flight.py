"""Closures in flight, and how many of them there may be.

Knows neither trainers nor what closures do. Invariant: each closure that was added is returned
once, when it has ended; the first to end first, so that a slow one delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pstrain.coordinator.remote_value import CompletionQueue, RemoteValue
from pstrain.execution.executor import Report, never

Request = TypeVar("Request")
"""What is known of a closure besides its value."""


class InFlightCalls(Generic[Request]):
    """A window of closures in flight, which gives ready trainers work while others are slow.

    ``room``: how many closures may run, be queued, or have ended unreturned at a time. There may be
    more only if none has ended and ``is_ready`` says that a trainer has nothing to do, because the
    slow trainers may hold all of them. The cost of an end does not grow with the number in flight.
    """

    def __init__(self, room: int, is_ready: Callable[[], bool]) -> None:
        self._room, self._is_ready = room, is_ready
        self._calls: dict[RemoteValue, Request] = {}
        self._ended = CompletionQueue()
        self._idle = 0

    def __bool__(self) -> bool:
        """True if any closure is in flight."""
        return bool(self._calls)

    @property
    def has_room(self) -> bool:
        """True if one more closure may be added."""
        if len(self._calls) + self._idle < self._room:
            return True
        return not self._ended and not self._idle and self._is_ready()

    def add(self, value: RemoteValue, request: Request) -> None:
        """Adds a closure."""
        self._calls[value] = request
        self._ended.add(value)

    def next_ended(self, *, or_room: bool) -> tuple[RemoteValue, Request] | None:
        """Removes and returns the first closure that has ended.

        Blocks until there is one; with ``or_room``, returns None as soon as there is room for more.
        """
        if not self._ended:
            is_enough = self._is_ready if or_room and not self._idle else never
            self._ended.wait(next(iter(self._calls)), is_enough)
        for value in self._ended.take():
            return value, self._calls.pop(value)
        return None

    def note_idle(self, is_idle: bool) -> None:
        """Notes whether the closure that was returned last found nothing to do.

        Idle closures take room until one finds work or none is in flight, because it is useless to
        ask again while others hold what is left.
        """
        self._idle = self._idle + 1 if is_idle and self._calls else 0

    def give_up(self, timeout_s: float) -> bool:
        """Cancels all closures in flight; True if all have ended.

        Blocks until they have, at most ``timeout_s``. Raises DeadlineExceededError if a trainer
        does not answer in time whether it cancels one.
        """
        until_s = time.monotonic() + timeout_s
        for value in reversed(
            list(self._calls)
        ):  # last first, or waiting ones would begin meanwhile
            value.cancel(max(0.0, until_s - time.monotonic()))
        return self._ended.wait_all(list(self._calls), max(0.0, until_s - time.monotonic()))

    def unreturned(self) -> list[Report]:
        """Returns the reports of closures that have ended and were not returned; in any thread."""
        return [value.peek() for value in list(self._calls) if value.has_value]
