"""Closures that are out, and how many of them there may be.

Knows neither trainers nor what closures do. Invariant: each that was added is heard once, when it
has ended: the first to end first, so that one that is late holds up no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pstrain.coordinator.remote_value import Ends, RemoteValue
from pstrain.execution.executor import Report, never

Asked = TypeVar("Asked")
"""What is known of a closure beside its value."""


class Ahead(Generic[Asked]):
    """So that those who are ready get work while somebody is late.

    ``room``: how many run, wait to, or wait to be heard at a time; more only where all are out and
    ``is_ready`` says that somebody has nothing to do, for those who are late may have them all.
    What an end costs does not grow with how many run.
    """

    def __init__(self, room: int, is_ready: Callable[[], bool]) -> None:
        self._room, self._is_ready = room, is_ready
        self._out: dict[RemoteValue, Asked] = {}
        self._ends = Ends()
        self._idle = 0

    def __bool__(self) -> bool:
        """Whether any is out."""
        return bool(self._out)

    @property
    def has_room(self) -> bool:
        """Whether one more may be added."""
        if len(self._out) + self._idle < self._room:
            return True
        return not self._ends and not self._idle and self._is_ready()

    def add(self, value: RemoteValue, asked: Asked) -> None:
        """One more."""
        self._out[value] = asked
        self._ends.add(value)

    def next_ended(self, *, or_room: bool) -> tuple[RemoteValue, Asked] | None:
        """The first that has ended and was not heard, which is no longer out.

        Blocks until there is one; ``or_room``: or until there is room for one more, then None.
        """
        if not self._ends:
            is_enough = self._is_ready if or_room and not self._idle else never
            self._ends.wait(next(iter(self._out)), is_enough)
        for value in self._ends.take():
            return value, self._out.pop(value)
        return None

    def note_idle(self, is_idle: bool) -> None:
        """Whether the one that was heard last found nothing to do.

        Such take room until one finds something or none is out: to ask again and again, while
        others have what is left, is in vain.
        """
        self._idle = self._idle + 1 if is_idle and self._out else 0

    def give_up(self, timeout_s: float) -> bool:
        """Those that wait never run, and others are heard by nobody; whether all have ended.

        Blocks until they have, for so long; DeadlineExceededError where one cannot be cancelled.
        """
        until_s = time.monotonic() + timeout_s
        for value in reversed(list(self._out)):  # else those that wait would begin meanwhile
            value.cancel(max(0.0, until_s - time.monotonic()))
        return self._ends.wait_all(list(self._out), max(0.0, until_s - time.monotonic()))

    def unheard(self) -> list[Report]:
        """Reports that are there and were not heard; by any thread."""
        return [value.peek() for value in list(self._out) if value.has_value]
