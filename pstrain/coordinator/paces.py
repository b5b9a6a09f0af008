"""Which functions take less time than their way to a trainer and back.

Pure: no clock, no thread. Invariant: a function is called quick only after several runs in a row
that were short, and no longer after one that was not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

QUICK_S: Final = 0.001
_RUNS: Final = 8
_REMEMBERED: Final = 1024


class Paces:
    """Counts short runs by function. Not thread-safe."""

    def __init__(self) -> None:
        self._short: OrderedDict[str, int] = OrderedDict()

    def note(self, function_id: str, seconds: float) -> None:
        """A run has ended after so long."""
        if seconds >= QUICK_S:
            self._short.pop(function_id, None)
            return
        self._short[function_id] = self._short.get(function_id, 0) + 1
        if len(self._short) > _REMEMBERED:
            self._short.popitem(last=False)

    def is_quick(self, function_id: str) -> bool:
        """Whether the latest runs of a function were all short."""
        return self._short.get(function_id, 0) >= _RUNS
