"""Bitmaps of the rows of a shard that changed since named moments.

Knows rows by number, nothing of values, files or checkpoints. Not thread-safe: the shard's lock
guards it. Invariant: as long as a moment is known, all rows that changed after it are marked.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import marks

_MOMENTS_MAX: Final = 8


class MarkedRows:
    """A set of rows of a shard, with a bit for each row."""

    def __init__(self, bits: NDArray[np.uint8]) -> None:
        self._bits = bits

    @functools.cached_property
    def count(self) -> int:
        """The number of marked rows, counted on first use: training pauses during a snapshot."""
        return int(marks.count_marked(self._bits))

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """Returns the marked rows in ``[first, last)``, all counted from the shard's first row."""
        start = first >> 3
        bits = np.unpackbits(self._bits[start : (last + 7) >> 3], bitorder="little")
        return first + np.flatnonzero(bits[first - 8 * start : last - 8 * start])


class ChangedRows:
    """The changes of rows ``[row_start, row_start + rows)``, with a bit per row and moment."""

    def __init__(self, row_start: int, rows: int) -> None:
        self._row_start = row_start
        self._bytes = (rows + 7) >> 3
        # For each moment the rows that changed after it and before the next one.
        self._after: dict[str, NDArray[np.uint8]] = {}
        self._now = np.zeros(self._bytes, np.uint8)

    def add_rows(self, ids: NDArray[np.int64]) -> None:
        """Marks rows ``ids`` (global, in range) as changed."""
        marks.mark_rows(self._now, self._row_start, ids)

    def add_range(self, start: int, stop: int) -> None:
        """Marks rows ``[start, stop)`` (global) as changed."""
        marks.mark_range(self._now, start - self._row_start, stop - self._row_start)

    def next_moment(self, moment: str, since: str | None) -> MarkedRows | None:
        """Names this moment; returns the rows changed ``since`` another, or None if unknown.

        Forgets moments older than ``since``, and all but the newest eight. A repeated ``moment``,
        as of a repeated message, does not change what is known since it.
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
