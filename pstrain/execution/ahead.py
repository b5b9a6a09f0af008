"""Closures of ranges that are out, and how far they run ahead of the oldest.

Knows neither trainers nor what closures do. Invariant: they are in the order in which they were
added, which is that in which their reports are heard; those that have ended before an older one
take no room of others, but there are not more than ``_MOST`` times as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from pstrain.coordinator.remote_value import Ends, RemoteValue
from pstrain.execution.dealing import Range
from pstrain.execution.executor import Report, never

_MOST: Final = 16


class Dealt(NamedTuple):
    """A range that a closure was scheduled for."""

    value: RemoteValue
    range: Range


class Ahead:
    """So that those who are ready get ranges while somebody is late with an old one.

    ``room``: how many run, or wait to, at a time; more only while the oldest does and ``is_ready``
    says that somebody has nothing to do, for those who are late may have them all. ``noted`` is
    told each report once it is there, whichever are to be heard before it. What an end costs does
    not grow with how many run.
    """

    def __init__(
        self, room: int, is_ready: Callable[[], bool], noted: Callable[[Report], None]
    ) -> None:
        self.dealt: deque[Dealt] = deque()
        self.has_met_end = False
        self._room, self._is_ready, self._noted = room, is_ready, noted
        self._ends = Ends()
        self._running = 0

    @property
    def has_room(self) -> bool:
        """Whether one more may be added; where many run, those that have ended are noted first."""
        if self._is_full or self._running < self._room:
            return not self._is_full
        if self.dealt[0].value.has_ended:
            return False  # its report comes first
        self._note_ended()
        return self._running < self._room or self._is_ready()

    def add(self, dealt: Dealt) -> None:
        """The next one."""
        self.dealt.append(dealt)
        self._ends.add(dealt.value)
        self._running += 1

    def wait(self) -> None:
        """Blocks until the oldest has ended, or there may be room behind it."""
        oldest = self.dealt[0].value
        while True:
            self._ends.wait(oldest, never if self._is_full else self._is_ready)
            self._note_ended()
            if not self._is_full or oldest.has_ended:
                return

    def pop(self) -> Range:
        """The oldest has ended."""
        self._note_ended()
        return self.dealt.popleft().range

    @property
    def _is_full(self) -> bool:
        return len(self.dealt) >= _MOST * self._room

    def _note_ended(self) -> None:
        for value in self._ends.take():
            self._running -= 1
            if value.has_value:
                report = value.peek()
                self.has_met_end = self.has_met_end or report["ended"]
                self._noted(report)
