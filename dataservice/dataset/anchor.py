"""The position to which an iterator goes back when an interrupt breaks off its stream.

Taking a position costs as much as reading several elements, so a position is taken every 50 ms, and
the elements after it are counted. Knows only streams. Invariant: the anchor stands for the position
before the next element.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dataservice.dataset.stream import BatchStream, State

# Bounds the time to read elements again, besides what the stream itself reads again.
_MOVES_EVERY_S: Final = 0.05


class Anchor:
    """The anchor of one pass: call `move` before each element, and `count_element` after it."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._taken_s = 0.0
        self._elements = 0

    @property
    def is_set(self) -> bool:
        return self._state is not None

    def move(self, position: Callable[[], State]) -> None:
        """Takes the position anew if the last one is too old."""
        now_s = time.perf_counter()
        if self._state is None or now_s - self._taken_s > _MOVES_EVERY_S:
            self._state, self._taken_s, self._elements = position(), now_s, 0

    def count_element(self) -> None:
        """Counts one more element after the position."""
        self._elements += 1

    def restore(self, stream: BatchStream) -> None:
        """Moves a fresh stream to the anchor: restores the position, skips the counted elements."""
        assert self._state is not None
        stream.restore(self._state)
        for _ in range(self._elements):
            next(stream, None)
