"""How many closures of a function to send ahead to a trainer, by how long its runs took.

So many may wait at a trainer beyond those that run: messages between it and the coordinator then
carry many orders and many results at a time. Pure: no clock, no thread. Invariant: a function's
closures go ahead only after several runs in a row, and as few as the longest of the latest allows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

AHEAD_S: Final = 0.2
"""So much work may wait for each closure that a trainer runs, which is not part of it: it ends with
the trainer, or the others wait for it at the end. Where none waits, a trainer idles until the next
has come."""
AHEAD_MAX: Final = 128
"""Twice as many as travel in one message: one is on its way while the other is worked off."""
_RUNS: Final = 8
_REMEMBERED: Final = 1024


class Paces:
    """How long the latest runs took, by function. Not thread-safe.

    ``closures_in_flight``: how many a trainer runs side by side.
    """

    def __init__(self, closures_in_flight: int = 1) -> None:
        self._closures_in_flight = closures_in_flight
        self._work_s = AHEAD_S * closures_in_flight
        self._latest: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, function_id: str, seconds: float) -> None:
        """A run has ended after so long."""
        latest = self._latest.get(function_id)
        if latest is None:
            latest = self._latest[function_id] = deque(maxlen=_RUNS)
            if len(self._latest) > _REMEMBERED:
                self._latest.popitem(last=False)
        latest.append(seconds)

    def ahead(self, function_id: str) -> int:
        """How many of a function's closures a trainer may have at a time; 0: as it has slots."""
        latest = self._latest.get(function_id, ())
        if len(latest) < _RUNS:
            return 0
        longest_s = max(latest)
        if longest_s * AHEAD_MAX <= self._work_s:
            return AHEAD_MAX
        waiting = int(self._work_s / longest_s)
        return min(self._closures_in_flight + waiting, AHEAD_MAX) if waiting else 0
