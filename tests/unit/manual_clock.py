"""A clock for tests of code that is given one, in place of `time.monotonic`."""

from __future__ import annotations


class ManualClock:
    """A monotonic clock that stands still until it is advanced."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
