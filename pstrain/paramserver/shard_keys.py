"""The keys of a shard whose values are keys: which row has which key, and since when it is unused.

Knows nothing of the rows of other variables that the keys stand for. Invariant: a key keeps its row
until it is removed, and rows change under the shard's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final

import numpy as np

from pstrain.errors import InvalidArgumentError
from pstrain.kernels import claims
from pstrain.kernels.keys import NO_KEY, NO_ROW_EVER, VACATED
from pstrain.paramserver.key_uses import KeyUses
from pstrain.paramserver.row_watchers import RowWatchers
from pstrain.paramserver.shard_rows import Array, ShardRows
from pstrain.vocabulary import VariableSpec

_ROWS_AT_ONCE: Final = 1 << 16


class ShardKeys(ShardRows):
    """The methods of a shard for values that are keys, int64 [rows, 1]."""

    version: int
    _lock: threading.Lock
    _watchers: RowWatchers

    def __init__(self, spec: VariableSpec, index: int) -> None:
        super().__init__(spec, index)
        self.refused = 0
        """How many claims were refused because their bucket was full."""
        self.uses = KeyUses(self.row_stop - self.row_start)
        """When the keys were last trained on."""

    @property
    def slab(self) -> Array:
        """The rows, not a copy; a subclass has them."""
        raise NotImplementedError

    def claim(self, keys: Array, starts: Array, stops: Array, may_claim: Array) -> Array:
        """Returns the row of each key in its bucket ``[starts, stops)``, after claiming rows.

        A key without a row gets a free one if it ``may_claim`` and its bucket is not full;
        otherwise its row is ``NO_ROW``, or ``NO_ROW_EVER`` if the bucket is full. Idempotent.
        Arguments must be checked.
        """
        rows = np.empty(len(keys), np.int64)
        place = (self.slab, self.row_start, keys, starts, stops)
        if not claims.find_rows(*place, rows) or not may_claim.any():
            refused = int(np.count_nonzero((rows == NO_ROW_EVER) & (may_claim != 0)))
            with self._lock if refused else nullcontext():
                self.refused += refused
            return rows
        chosen = np.zeros(1 << (2 * len(keys)).bit_length(), np.int32)
        with self._lock:
            self.refused += claims.choose_rows(*place, may_claim, chosen, rows)
            numbers = rows - self.row_start
            free = rows >= 0
            free[free] = self.slab[numbers[free], 0] <= VACATED
            if free.any():
                self._watchers.announce(rows[free])
                self.slab[numbers[free], 0] = keys[free]
                self.version += 1
        return rows

    def note_trained(self, rows: Array) -> None:
        """Notes that keys were trained on, given their rows, or numbers below 0."""
        self.uses.note(rows[rows >= 0] - self.row_start)

    def count_keys(self) -> int:
        """Returns how many rows have a key."""
        return int(claims.count_keys(self.slab))

    def count_idle(self, start: int, stop: int) -> Array:
        """Returns how many keys of rows ``[start, stop)`` are idle for 0, 1, ... periods."""
        counts = np.zeros(self.uses.period + 1, np.int64)
        for rows in self._keyed(start, stop):
            idle = self.uses.idle(rows - self.row_start)
            counts += np.bincount(idle, minlength=len(counts))
        return np.trim_zeros(counts, "b")

    def idle_rows(self, start: int, stop: int, periods: int, ties: int) -> Array:
        """Returns those of rows ``[start, stop)`` whose keys are idle for more than ``periods``.

        Also ``ties`` of those whose keys are idle for just as many, spread evenly over the rows so
        that all buckets get free rows.
        """
        found, tied_parts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for rows in self._keyed(start, stop):
            idle = self.uses.idle(rows - self.row_start)
            found.append(rows[idle > periods])
            tied_parts.append(rows[idle == periods])
        tied = np.concatenate(tied_parts)
        ties = min(ties, len(tied))
        some = tied[np.arange(ties) * len(tied) // max(1, ties)]
        return np.concatenate([*found, some])

    def _keyed(self, start: int, stop: int) -> Iterator[Array]:
        """Yields those of rows ``[start, stop)`` that have a key, in parts that take little memory.

        Raises InvalidArgumentError for values that are no keys, and for rows of other shards.
        """
        self.check_has_keys()
        self.check_range(start, stop)
        for first in range(start, stop, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, stop)
            keys = self.slab[first - self.row_start : last - self.row_start, 0]
            yield first + np.flatnonzero(keys > VACATED)

    def keys_of(self, rows: Array) -> Array:
        """Returns the keys of ``rows``."""
        keys: Array = self.slab[rows - self.row_start, 0]
        return keys

    def check_removal(self, rows: Array, bounds: Array) -> None:
        """Raises InvalidArgumentError unless :meth:`remove_keys` can be done."""
        self.check_has_keys()
        self.check_ids(rows)
        if len(bounds):
            self.check_range(int(bounds[0]), int(bounds[-1]))
        if (np.diff(bounds) <= 0).any():
            raise InvalidArgumentError(
                f"buckets of variable {self.spec.name!r} must follow one another, got {bounds}"
            )

    def remove_keys(self, rows: Array, keys: Array, bounds: Array, period: int) -> None:
        """Removes ``keys`` from ``rows``, unless the row has another key, and begins ``period``.

        ``bounds``: where the buckets with these rows begin and where the last one ends. Idempotent,
        even if the repeated call comes late: a key that was trained on in ``period`` has its row
        anew and keeps it, and nothing is removed once a later period has begun. Arguments must be
        checked.
        """
        with self._lock:
            is_going = self.slab[rows - self.row_start, 0] == keys
            is_going &= self.uses.unused_since(rows - self.row_start, period)
            going = rows[is_going]
            if len(going):
                self._set_keys(going, VACATED)
                unpassed = np.empty(self.row_stop - self.row_start, np.int64)
                count = claims.find_unpassed(self.slab, self.row_start, bounds, unpassed)
                self._set_keys(unpassed[:count], NO_KEY)
                self.version += 1
            self.uses.begin(period)

    def _set_keys(self, rows: Array, key: int) -> None:
        self._watchers.announce(rows)
        self.slab[rows - self.row_start, 0] = key
