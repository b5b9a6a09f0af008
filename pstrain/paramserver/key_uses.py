"""When the rows of keys were last trained on, counted in periods, from one eviction to the next.

Knows rows by number, nothing of keys. A trainer asks for a key at its first use in each period,
because it forgets all keys at an eviction: so this costs a training step nothing. Reads and writes
of single rows need no lock. Invariant: a row is idle for as many periods as have begun since the
last one in which it was noted, or in which rows were restored or assigned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class KeyUses:
    """The period of the last use of each of ``rows`` rows; takes no memory in the first period."""

    def __init__(self, rows: int) -> None:
        self.period = 0
        self._rows = rows
        self._last: NDArray[np.uint32] | None = None

    def note(self, rows: I64) -> None:
        """Notes a use of ``rows``, counted from the first one, in the present period."""
        last = self._last
        if last is not None:
            last[rows] = self.period

    def begin(self, period: int) -> None:
        """Begins the next period, unless ``period`` has begun already."""
        if period > self.period:
            if self._last is None:
                self._last = np.full(self._rows, self.period, np.uint32)
            self.period += 1

    def idle(self, rows: I64) -> I64:
        """Returns for how many periods each of ``rows`` was not used."""
        last = self._last
        if last is None:
            return np.zeros(len(rows), np.int64)
        return self.period - last[rows].astype(np.int64)

    def unused_since(self, rows: I64, period: int) -> NDArray[np.bool_]:
        """True for each of ``rows`` whose last use was before ``period``.

        False for all if a later period has begun.
        """
        idle_for = self.idle(rows)
        return (idle_for > self.period - period) & (self.period <= period)

    def forget(self) -> None:
        """Forgets all uses: all rows count as used in the present period."""
        self._last = None
