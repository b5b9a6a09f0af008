"""Windows in which the elements of a key wait until the window is full, for `windows`.

A row is kept as its index in a run, a batch of rows, and is copied when its window is read, so that
a chunk costs the same however many keys it has. Batches that are elements are kept as they are.
Knows nothing of streams and positions. Invariants: the rows of one key leave in the order in which
they came; besides the rows of windows not yet read, runs hold at most about twice the waiting rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.runtime.number_arrays import from_numbers

# Returns how many elements fill the window of a key.
SizeOf: TypeAlias = Callable[[int], int]

# Rows that are copied together, for windows that are read one after the other.
_GATHERED_ROWS: Final = 16_384
# If more than `_RUNS` runs have fewer than `_SMALL_BYTES` bytes, they are joined. The result stays
# far below 2 GB, the limit of Arrow's string offsets.
_RUNS: Final = 32
_SMALL_BYTES: Final = 16 << 20


class Window(NamedTuple):
    """Elements of one key, in order: all rows in one batch, or a batch for each element."""

    key: int
    batches: Sequence[pa.RecordBatch]


class ReadyWindows(ABC):
    """Windows that may leave, in order, with the key and the number of elements of each.

    `oldest` is the first chunk that any of their elements is from; None without windows.
    """

    keys: np.ndarray
    elements: np.ndarray
    oldest: int | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def window(self, number: int) -> Window:
        """Returns the window of that number; cheap if windows are asked for in order."""


class OpenWindows(ABC):
    """The windows that are not full."""

    @abstractmethod
    def add(
        self, batch: pa.RecordBatch, keys: np.ndarray, rows: np.ndarray, chunk: int
    ) -> ReadyWindows:
        """Adds the elements `rows` of a chunk, which have these keys; returns the full windows.

        The windows are in the order of the elements that filled them.
        """

    @abstractmethod
    def rest(self) -> ReadyWindows:
        """Removes and returns the windows that are not full, in the order of their keys."""

    @property
    @abstractmethod
    def oldest(self) -> int | None:
        """The first chunk with an element that waits here; None if none waits."""


class _Rows(NamedTuple):
    """The places of waiting rows, in columns; sorted by key, and for each key in arrival order."""

    key: np.ndarray
    chunk: np.ndarray
    run: np.ndarray
    row: np.ndarray

    def at(self, where: np.ndarray | slice) -> _Rows:
        """Returns some of the rows."""
        return _Rows(*(column[where] for column in self))

    @property
    def oldest(self) -> int | None:
        """The first chunk that any of the rows is from; None without rows."""
        return int(self.chunk.min()) if self.chunk.size else None


_NO_ROWS: Final = _Rows(*(np.empty(0, np.int64) for _ in _Rows._fields))


class _ReadyRows(ReadyWindows):
    def __init__(
        self, keys: np.ndarray, sizes: np.ndarray, rows: _Rows, runs: Mapping[int, pa.RecordBatch]
    ) -> None:
        self.keys = keys
        self.elements = sizes
        self.oldest = rows.oldest
        self._rows = rows
        self._runs = runs
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        self._gathered: pa.RecordBatch | None = None
        self._first = 0  # number of the first row in `_gathered`

    def window(self, number: int) -> Window:
        first, end = int(self._bounds[number]), int(self._bounds[number + 1])
        held = self._gathered
        if held is None or not self._first <= first or end > self._first + held.num_rows:
            fitting = np.searchsorted(self._bounds, first + _GATHERED_ROWS, side="right") - 1
            last = int(self._bounds[max(int(fitting), number + 1)])
            held = self._gathered = _gathered(self._rows.at(slice(first, last)), self._runs)
            self._first = first
        return Window(int(self.keys[number]), [held.slice(first - self._first, end - first)])


class OpenRows(OpenWindows):
    """Open windows of rows."""

    def __init__(self, size_of: SizeOf) -> None:
        self._size_of = size_of
        self._rows = _NO_ROWS
        self._runs: dict[int, pa.RecordBatch] = {}
        self._runs_made = 0

    @property
    def oldest(self) -> int | None:
        return self._rows.oldest

    def add(
        self, batch: pa.RecordBatch, keys: np.ndarray, rows: np.ndarray, chunk: int
    ) -> ReadyWindows:
        waiting = self._with(keys, rows, chunk, self._hold(batch))
        starts = group_starts(waiting.key)
        groups = waiting.key[starts]
        counts = np.diff(starts, append=len(waiting.key))
        sizes = counts + 1  # for keys that got no rows, whose windows cannot be full
        grown = np.unique(keys)
        sizes[np.searchsorted(groups, grown)] = [self._size_of(key) for key in grown.tolist()]
        windows = counts // sizes
        lengths = np.repeat(sizes, windows)
        firsts = np.repeat(starts, windows) + _ranks(windows) * lengths
        order = np.argsort(waiting.row[firsts + lengths - 1], kind="stable")
        taken = np.repeat(firsts[order], lengths[order]) + _ranks(lengths[order])
        ready = _ReadyRows(
            np.repeat(groups, windows)[order], lengths[order], waiting.at(taken), dict(self._runs)
        )
        self._rows = waiting.at(_ranks(counts) >= np.repeat(windows * sizes, counts))
        self._tidy()
        return ready

    def _with(self, keys: np.ndarray, rows: np.ndarray, chunk: int, run: int) -> _Rows:
        """Returns the waiting rows together with these."""
        order = np.argsort(keys, kind="stable")
        fresh: tuple[Any, ...] = (keys[order], chunk, run, rows[order])
        places = np.searchsorted(self._rows.key, keys[order], side="right")
        return _Rows(
            *(np.insert(old, places, new) for old, new in zip(self._rows, fresh, strict=True))
        )

    def rest(self) -> ReadyWindows:
        rows, self._rows = self._rows, _NO_ROWS
        runs, self._runs = self._runs, {}
        starts = group_starts(rows.key)
        return _ReadyRows(rows.key[starts], np.diff(starts, append=len(rows.key)), rows, runs)

    def _hold(self, batch: pa.RecordBatch) -> int:
        self._runs_made += 1
        self._runs[self._runs_made] = batch
        return self._runs_made

    def _tidy(self) -> None:
        """Drops rows that have left, and keeps the number of runs small."""
        runs, counts = np.unique(self._rows.run, return_counts=True)
        alive = dict(zip(runs.tolist(), counts.tolist(), strict=True))
        self._runs = {run: batch for run, batch in self._runs.items() if run in alive}
        for run, batch in list(self._runs.items()):
            if 2 * alive[run] <= batch.num_rows:
                self._join([run])
        small = [run for run, batch in self._runs.items() if batch.nbytes < _SMALL_BYTES]
        if len(small) > _RUNS:
            self._join(small)

    def _join(self, runs: list[int]) -> None:
        """Copies the waiting rows of some runs into one new run."""
        where = np.flatnonzero(np.isin(self._rows.run, runs))
        joined = _gathered(self._rows.at(where), self._runs)
        for run in runs:
            del self._runs[run]
        self._rows.run[where] = self._hold(joined)
        self._rows.row[where] = np.arange(len(where))


def _gathered(rows: _Rows, runs: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
    """Copies these rows, at least one, into a batch in this order."""
    order = np.argsort(rows.run, kind="stable")
    starts = group_starts(rows.run[order])
    numbers = rows.run[order][starts].tolist()
    wanted = np.split(rows.row[order], starts[1:])
    parts = [_taken(runs[run], taken) for run, taken in zip(numbers, wanted, strict=True)]
    if len(parts) == 1:
        return parts[0]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return _taken(concat_batches(parts), back)


def _taken(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    if (np.diff(rows) == 1).all():
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(from_numbers(rows))


def group_starts(values: np.ndarray) -> np.ndarray:
    """Returns where each sequence of equal values begins."""
    if not values.size:
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def _ranks(counts: np.ndarray) -> np.ndarray:
    """Returns 0 .. count - 1 for each count, one sequence after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - counts, counts)


class _ReadyBatches(ReadyWindows):
    def __init__(self, windows: Sequence[tuple[int, list[tuple[int, pa.RecordBatch]]]]) -> None:
        self.keys = np.array([key for key, _ in windows], np.int64)
        self.elements = np.array([len(elements) for _, elements in windows], np.int64)
        self.oldest = min((elements[0][0] for _, elements in windows), default=None)
        self._windows = windows

    def window(self, number: int) -> Window:
        key, elements = self._windows[number]
        return Window(key, [batch for _, batch in elements])


class OpenBatches(OpenWindows):
    """Open windows of batches, which are added one at a time."""

    def __init__(self, size_of: SizeOf) -> None:
        self._size_of = size_of
        # In the order of their first elements. An OrderedDict finds its first entry at once, where
        # a dict would pass over all entries that were removed.
        self._elements: OrderedDict[int, list[tuple[int, pa.RecordBatch]]] = OrderedDict()

    @property
    def oldest(self) -> int | None:
        first = next(iter(self._elements.values()), None)
        return None if first is None else first[0][0]

    def add(
        self,
        batch: pa.RecordBatch,
        keys: np.ndarray,
        rows: np.ndarray,
        chunk: int,
    ) -> ReadyWindows:
        if not rows.size:
            return _ReadyBatches(())
        key = int(keys[0])
        elements = self._elements.setdefault(key, [])
        elements.append((chunk, batch))
        full = len(elements) >= self._size_of(key)
        return _ReadyBatches(((key, self._elements.pop(key)),) if full else ())

    def rest(self) -> ReadyWindows:
        rest, self._elements = self._elements, OrderedDict()
        return _ReadyBatches(sorted(rest.items(), key=lambda item: item[0]))
