"""Time as a value that can be passed in.

Code that decides takes ``now_s`` as an argument; code that waits takes a ``Clock``. Invariant:
readings never go backwards and say nothing about the time of day.
"""

from __future__ import annotations

import time
from typing import Protocol

from dataservice.errors import InvalidArgumentError


class Clock(Protocol):
    """A source of monotonic time."""

    def now_s(self) -> float:
        """Returns the seconds since an arbitrary moment."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    __slots__ = ()

    def now_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until told to advance. Not thread-safe."""

    __slots__ = ("_now_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Advances the clock by ``seconds`` and returns the new reading."""
        if seconds < 0:
            raise InvalidArgumentError(f"a clock cannot go back, got advance({seconds!r})")
        self._now_s += seconds
        return self._now_s
