"""Notifies snapshots and the bitmap of changes before rows of a shard change.

Knows rows by number, not what changes them. Invariant: every change is announced before it is made,
so a snapshot has the rows as they were at its moment, and a moment has all rows changed since.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pstrain.paramserver.changed_rows import ChangedRows, MarkedRows
from pstrain.paramserver.slab import Slab
from pstrain.paramserver.snapshot import Snapshot


class RowWatchers:
    """The watchers of rows ``[row_start, row_stop)``, numbered globally.

    Not thread-safe: the shard's lock guards it.
    """

    def __init__(self, slab: Slab, row_start: int, row_stop: int) -> None:
        self._slab = slab
        self._row_start, self._row_stop = row_start, row_stop
        self._snapshots: list[Snapshot] = []
        self._changed: ChangedRows | None = None

    def announce(self, ids: NDArray[np.int64] | None) -> None:
        """Announces that rows ``ids``, or all rows for None, are about to change."""
        if self._changed is None and not self._snapshots:
            return
        if ids is None:
            self.announce_range(self._row_start, self._row_stop)
            return
        if self._changed is not None:
            self._changed.add_rows(ids)
        if self._snapshots:
            for snapshot in self._needing():
                snapshot.keep_rows(ids)

    def announce_range(self, start: int, stop: int) -> None:
        """Announces that rows ``[start, stop)`` are about to change."""
        if self._changed is not None:
            self._changed.add_range(start, stop)
        if self._snapshots:
            for snapshot in self._needing():
                snapshot.keep_range(start, stop)

    def are_reading(self) -> bool:
        """True if a snapshot still reads rows from the slab."""
        return bool(self._needing())

    def forget_moments(self) -> None:
        """Forgets all moments, after the columns of all rows have changed."""
        self._changed = None

    def next_moment(self, moment: str, since: str | None) -> MarkedRows | None:
        """Names this moment; returns the rows changed ``since`` another, or None if unknown."""
        if self._changed is None:
            self._changed = ChangedRows(self._row_start, self._row_stop - self._row_start)
        return self._changed.next_moment(moment, since)

    def add(self, snapshot: Snapshot) -> None:
        """Notifies ``snapshot`` from now on, until it has been read or closed."""
        self._snapshots.append(snapshot)

    def _needing(self) -> list[Snapshot]:
        self._snapshots = [each for each in self._snapshots if each.needs(self._slab.array)]
        return self._snapshots
