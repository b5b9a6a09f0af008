"""How many closures of a function to send ahead to a trainer, by how long its runs took.

Closures that wait at a trainer beyond those that run let one message carry many orders or many
results. Pure: no clock, no thread. Invariant: a function's closures are sent ahead only after
several of its runs, and only as many as the longest of its latest runs allows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

AHEAD_S: Final = 0.2
"""How much work may wait at a trainer for each closure that it runs side by side.

More would be lost with the trainer, or be waited for at the end of the job; without any, a trainer
idles until its next closure arrives."""
AHEAD_MAX: Final = 128
"""Twice as many as one message carries: one message travels while another is worked off."""
_RUNS: Final = 8
_REMEMBERED: Final = 1024


class RunTimes:
    """The durations of the latest runs, by function. Not thread-safe.

    ``closures_in_flight``: how many closures a trainer runs side by side.
    """

    def __init__(self, closures_in_flight: int = 1) -> None:
        self._closures_in_flight = closures_in_flight
        self._work_s = AHEAD_S * closures_in_flight
        self._latest: OrderedDict[str, deque[float]] = OrderedDict()
        self._ahead: dict[str, int] = {}  # of functions that may be sent ahead

    @property
    def ahead_max(self) -> int:
        """The most that :meth:`ahead` returns for any function."""
        return max(self._ahead.values(), default=0)

    def note(self, function_id: str, seconds: float) -> None:
        """Records how long a run of a function took."""
        latest = self._latest.get(function_id)
        if latest is None:
            latest = self._latest[function_id] = deque(maxlen=_RUNS)
            if len(self._latest) > _REMEMBERED:
                self._ahead.pop(self._latest.popitem(last=False)[0], None)
        latest.append(seconds)
        if ahead := self._ahead_of(latest):
            self._ahead[function_id] = ahead
        else:
            self._ahead.pop(function_id, None)

    def ahead(self, function_id: str) -> int:
        """Returns how many of a function's closures a trainer may hold; 0: only as it has slots."""
        return self._ahead.get(function_id, 0)

    def _ahead_of(self, latest: deque[float]) -> int:
        if len(latest) < _RUNS:
            return 0
        longest_s = max(latest)
        if longest_s * AHEAD_MAX <= self._work_s:
            return AHEAD_MAX
        waiting = int(self._work_s / longest_s)
        return min(self._closures_in_flight + waiting, AHEAD_MAX) if waiting else 0
