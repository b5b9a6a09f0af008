"""Cuts the splits of an epoch into windows, which make their `Split` objects when asked for.

Pure functions over the columns of a `SplitTable`, without a Python object for each split. Knows
nothing of leases. Invariant: the windows of an epoch depend on the arguments alone, hold every
split exactly once, in the order that `permutation` gives, and no window spans segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, overload

import numpy as np

from dataservice.errors import InvalidArgumentError
from dataservice.sharding import (
    GOLDEN_GAMMA,
    MASK64,
    TAIL_SHARE,
    Split,
    Window,
    order_key,
    total_rows,
)
from dataservice.split_table import NOT_KNOWN, SplitTable

# Up to this many splits, all windows are kept as objects.
_FEW: Final = 4_096
# The most pieces that the tail of an epoch is cut into, since all of them are kept in memory.
_MAX_TAIL_PIECES: Final = 65_536


class _Cuts(NamedTuple):
    """Pieces of index ranges: their indices in the epoch's order, and the range of each."""

    places: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


_NO_CUTS = _Cuts(*(np.zeros(0, np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True, eq=False)
class Windows(Sequence[Window]):
    """The windows of one epoch, made when asked for.

    `order` holds indices of splits in `table`, one entry for each piece of a split that is cut;
    `firsts` holds the index in `order` at which each window begins.
    """

    table: SplitTable
    order: np.ndarray
    firsts: np.ndarray
    cuts: _Cuts
    made: list[Window] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.firsts)

    @overload
    def __getitem__(self, at: int) -> Window: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Window, ...]: ...
    def __getitem__(self, at: int | slice) -> Window | tuple[Window, ...]:
        places = range(len(self))[at]
        if isinstance(places, range):
            return tuple(self[index] for index in places)
        if len(self.order) <= _FEW:
            return self._all()[places]
        first = int(self.firsts[places])
        end = int(self.firsts[places + 1]) if places + 1 < len(self) else len(self.order)
        splits = self._pieces(first, self.table.take(self.order[first:end]))
        return Window(index=places, splits=splits, rows=total_rows(splits))

    def _all(self) -> list[Window]:
        """Returns all windows, made at once: there are few splits, and callers ask repeatedly."""
        if not self.made:
            splits = self._pieces(0, self.table.take(self.order))
            ends = (*self.firsts[1:].tolist(), len(splits))
            groups = [splits[a:b] for a, b in zip(self.firsts.tolist(), ends, strict=True)]
            self.made[:] = [
                Window(index=index, splits=group, rows=total_rows(group))
                for index, group in enumerate(groups)
            ]
        return self.made

    def _pieces(self, first: int, splits: tuple[Split, ...]) -> tuple[Split, ...]:
        """Applies `cuts` to splits that stand in `order` from index `first` on."""
        cuts = self.cuts
        low, high = np.searchsorted(cuts.places, (first, first + len(splits))).tolist()
        if low == high:
            return splits
        pieces = list(splits)
        for at in range(low, high):
            start, stop = int(cuts.starts[at]), int(cuts.stops[at])
            place = int(cuts.places[at]) - first
            pieces[place] = pieces[place]._replace(start=start, stop=stop, rows=stop - start)
        return tuple(pieces)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Windows({len(self):,} of {len(self.table):,} splits)"


def make_windows(
    splits: Sequence[Split],
    *,
    epoch: int,
    shuffle_seed: int | None,
    target_rows: int,
    tail_rows: int = 0,
    target_bytes: int = 0,
) -> Windows:
    """Cuts the splits of one epoch into windows, in segment order.

    With `shuffle_seed`, the splits of each segment are first permuted by (seed, epoch, segment).
    Windows in the last tenth of the rows have about `tail_rows` rows, and index ranges are cut for
    that; 0 gives them `target_rows` as well. Files whose rows are not known share windows of
    `target_bytes`; 0 gives each such file a window of its own.
    """
    if target_rows < 1:
        raise InvalidArgumentError(f"target_rows must be at least 1, got {target_rows}")
    table = SplitTable.of(splits)
    cutter = _Cutter(table, target_rows, tail_rows, target_bytes)
    segments = table.columns["segment"]
    for segment in np.unique(segments).tolist():
        order = np.flatnonzero(segments == segment).astype(np.int32)
        if shuffle_seed is not None:
            order = order[permutation(len(order), order_key(shuffle_seed, epoch, segment))]
        cutter.cut(order)
    return cutter.windows()


def permutation(count: int, key: int) -> np.ndarray:
    """Returns a permutation of range(count) that depends on `key` alone (Fisher and Yates)."""
    steps = np.arange(max(count - 1, 0), dtype=np.uint64)
    # SplitMix64 of all states at once, vectorised.
    z = steps * np.uint64(GOLDEN_GAMMA) + np.uint64((key + GOLDEN_GAMMA) & MASK64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The high half of a 128-bit product, computed from 32-bit halves: unlike a modulo, it has no
    # bias towards small indices.
    sizes = np.uint64(count) - steps
    low = ((z & np.uint64(0xFFFFFFFF)) * sizes) >> np.uint64(32)
    others = ((z >> np.uint64(32)) * sizes + low) >> np.uint64(32)
    result = list(range(count))
    for last, other in zip(range(count - 1, 0, -1), others.tolist(), strict=True):
        result[last], result[other] = result[other], result[last]
    return np.array(result, np.int32)


class _Cutter:
    """Groups the splits of an epoch into windows, given their order segment by segment.

    A window is full once its weight, in rows or in bytes, has reached the target, which for rows
    becomes smaller in the tail of the epoch.
    """

    def __init__(
        self, table: SplitTable, target_rows: int, tail_rows: int, target_bytes: int
    ) -> None:
        self._table = table
        self._target_rows = target_rows
        self._target_bytes = target_bytes
        self._rows_left = int(table.rows[table.rows != NOT_KNOWN].sum())
        self._tail_begins = self._rows_left // TAIL_SHARE if tail_rows else -1
        self._tail_rows = tail_rows and max(tail_rows, self._tail_begins // _MAX_TAIL_PIECES)
        self._count = 0
        self._orders: list[np.ndarray] = []
        self._firsts: list[np.ndarray] = []
        self._cuts: list[_Cuts] = []

    def windows(self) -> Windows:
        """Returns the windows of all segments that were added."""
        nothing = np.zeros(0, np.int32)
        cuts = zip(*(self._cuts or [_NO_CUTS]), strict=True)
        return Windows(
            self._table,
            np.concatenate([nothing, *self._orders]),
            np.concatenate([nothing, *self._firsts]),
            _Cuts(*(np.concatenate(some) for some in cuts)),
        )

    def cut(self, order: np.ndarray) -> None:
        """Adds the windows of one segment."""
        known = self._table.rows[order] != NOT_KNOWN
        turns = np.flatnonzero(known[1:] != known[:-1]) + 1
        for run in np.split(order, turns):
            if self._table.rows[run[0]] == NOT_KNOWN:
                self._cut_by_bytes(run)
            else:
                self._cut_by_rows(run)

    def _cut_by_bytes(self, run: np.ndarray) -> None:
        following = _next_firsts(self._table.costs_bytes()[run], self._target_bytes)
        # A split without a path is a whole source, such as a generator, and has its own window.
        alone = np.flatnonzero(~self._table.have_path()[run])
        if len(alone):
            next_alone = np.append(alone, len(run))
            places = np.searchsorted(next_alone, np.arange(len(run)), "right")
            following = np.minimum(following, next_alone[places])
        self._add(run, following)

    def _cut_by_rows(self, run: np.ndarray) -> None:
        rows = self._table.rows[run]
        before = np.cumsum(rows) - rows
        tail = int(np.searchsorted(before, self._rows_left - self._tail_begins))
        self._rows_left -= int(rows.sum())
        parts = np.ones(len(run), np.int64)
        if tail < len(run):
            parts[tail:] = self._parts(run[tail:])
        if (parts > 1).any():
            run, rows = self._in_pieces(run, rows, parts)
        following = _next_firsts(rows, self._target_rows)
        if tail < len(run):
            finer = np.maximum(_next_firsts(rows, self._tail_rows), tail)
            following = np.where(following < tail, following, finer)
        self._add(run, following)

    def _parts(self, run: np.ndarray) -> np.ndarray:
        """Returns into how many pieces each split is cut: more than 1 for large index ranges."""
        columns = self._table.columns
        rows = columns["rows"][run]
        is_range = rows == columns["stop"][run] - columns["start"][run]
        is_range &= ~self._table.have_path()[run]
        return np.where(is_range, np.maximum(-(-rows // self._tail_rows), 1), 1)

    def _in_pieces(
        self, run: np.ndarray, rows: np.ndarray, parts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the run and its rows with an entry for each piece; records the cuts."""
        step = self._tail_rows
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        run, rows, is_cut = (np.repeat(some, parts) for some in (run, rows, parts > 1))
        starts = self._table.columns["start"][run] + number * step
        stops = starts + np.minimum(step, self._table.columns["stop"][run] - starts)
        places = np.flatnonzero(is_cut)
        self._cuts.append(_Cuts(places + self._count, starts[places], stops[places]))
        return run, np.where(is_cut, stops - starts, rows)

    def _add(self, run: np.ndarray, following: np.ndarray) -> None:
        """Adds a run's windows: a window that begins at index i ends before `following[i]`."""
        firsts = []
        place, steps = 0, following.tolist()
        while place < len(steps):
            firsts.append(place)
            place = steps[place]
        self._orders.append(run)
        self._firsts.append(np.array(firsts, np.int64) + self._count)
        self._count += len(run)


def _next_firsts(weights: np.ndarray, target: int) -> np.ndarray:
    """Returns, for a window that begins at each index, the first index after it.

    The window ends with the split at which its weight reaches the target.
    """
    reached = np.cumsum(weights)
    following = np.searchsorted(reached, reached - weights + target) + 1
    return np.maximum(following, np.arange(1, len(weights) + 1))
