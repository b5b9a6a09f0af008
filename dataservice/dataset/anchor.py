"""Where an iterator goes back to when an interrupt breaks off what it reads.

To take a position costs as much as some elements do, so there is one now and then, and a count of
the elements since. Knows streams alone. Invariant: it stands for the place before the next element.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dataservice.dataset.stream import BatchStream, State

# As long as it takes to read again at most, besides what the stream itself reads again.
_MOVES_EVERY_S: Final = 0.05


class Anchor:
    """Of one pass. To be moved before each element, and told of each that came."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._taken_s = 0.0
        self._elements = 0

    @property
    def is_set(self) -> bool:
        return self._state is not None

    def move(self, position: Callable[[], State]) -> None:
        """Takes the position where the last one is too old."""
        now_s = time.perf_counter()
        if self._state is None or now_s - self._taken_s > _MOVES_EVERY_S:
            self._state, self._taken_s, self._elements = position(), now_s, 0

    def passed(self) -> None:
        """One more element came."""
        self._elements += 1

    def restore(self, stream: BatchStream) -> None:
        """Moves a fresh stream to the place."""
        assert self._state is not None
        stream.restore(self._state)
        for _ in range(self._elements):
            next(stream, None)
