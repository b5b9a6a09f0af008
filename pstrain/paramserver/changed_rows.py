"""A bitmap of the rows of a shard that changed since a named moment.

Knows rows by number, nothing of values, files or checkpoints. Invariant: a row that changed after
a moment is among those since that moment, for as long as the moment is known. Not thread-safe: the
shard's lock guards it.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import marks

_MOMENTS_MAX: Final = 8


class MarkedRows:
    """Rows of a shard, a bit for each."""

    def __init__(self, bits: NDArray[np.uint8]) -> None:
        self._bits = bits

    @functools.cached_property
    def count(self) -> int:
        """How many are marked. Not counted before it is asked for, as training stands still."""
        return int(marks.count_marked(self._bits))

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """int64 [n]: the marked rows of ``[first, last)``, counted from the shard's first."""
        start = first >> 3
        bits = np.unpackbits(self._bits[start : (last + 7) >> 3], bitorder="little")
        return first + np.flatnonzero(bits[first - 8 * start : last - 8 * start])


class ChangedRows:
    """Rows ``[row_start, row_start + rows)``, a bit for each and moment."""

    def __init__(self, row_start: int, rows: int) -> None:
        self._row_start = row_start
        self._bytes = (rows + 7) >> 3
        # What changed after each moment and before the next.
        self._after: dict[str, NDArray[np.uint8]] = {}
        self._now = np.zeros(self._bytes, np.uint8)

    def add_rows(self, ids: NDArray[np.int64]) -> None:
        """Rows ``ids`` (global, in range) change now."""
        marks.mark_rows(self._now, self._row_start, ids)

    def add_range(self, start: int, stop: int) -> None:
        """Rows ``[start, stop)`` (global) change now."""
        marks.mark_range(self._now, start - self._row_start, stop - self._row_start)

    def next_moment(self, moment: str, since: str | None) -> MarkedRows | None:
        """What changed ``since`` a moment, None where that is not known; now is ``moment``.

        Older moments than ``since`` are forgotten, and all but the newest few. A moment that comes
        again, as a message may, changes nothing of what is known since.
        """
        changed = None
        if since in self._after:
            moments = list(self._after)
            for older in moments[: moments.index(since)]:
                del self._after[older]
            changed = MarkedRows(np.bitwise_or.reduce(list(self._after.values())))
        if moment not in self._after:
            self._now = self._after[moment] = np.zeros(self._bytes, np.uint8)
        for older in list(self._after)[:-_MOMENTS_MAX]:
            del self._after[older]
        return changed
