"""Windows that elements wait in until they are full, for `windows`.

Rows are kept as indices into runs of rows and are gathered when their window is read, so that a
chunk costs the same however many keys it has; batches that are elements are kept as they are.
Knows nothing of streams and positions. Invariants: the rows of one key leave in the order in which
they came; runs hold at most about twice the rows that wait, besides those of windows not yet read.
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

# How many elements fill the window of a key.
SizeOf: TypeAlias = Callable[[int], int]

# Rows that are copied together, for windows that are read one after the other.
_GATHERED_ROWS: Final = 16_384
# More runs than this, of fewer bytes than that, become one: far from 2 GB, where Arrow's offsets
# of texts end.
_RUNS: Final = 32
_SMALL_BYTES: Final = 16 << 20


class Window(NamedTuple):
    """Elements of one key, in order: rows in one batch, or one batch each."""

    key: int
    batches: Sequence[pa.RecordBatch]


class ReadyWindows(ABC):
    """Windows in the order in which they leave; `keys` and `elements` are theirs.

    `oldest` is the first chunk of which they have an element, None without windows.
    """

    keys: np.ndarray
    elements: np.ndarray
    oldest: int | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def window(self, number: int) -> Window:
        """The window of that number; cheap where they are asked for in order."""


class OpenWindows(ABC):
    """Windows that are not full."""

    @abstractmethod
    def add(
        self, batch: pa.RecordBatch, keys: np.ndarray, rows: np.ndarray, chunk: int
    ) -> ReadyWindows:
        """Adds the elements `rows` of a chunk, which have these keys; what is full now.

        In the order of the elements that filled them.
        """

    @abstractmethod
    def rest(self) -> ReadyWindows:
        """The windows that are not full, by key, which are not here any more."""

    @property
    @abstractmethod
    def oldest(self) -> int | None:
        """The first chunk of which an element waits here."""


class _Rows(NamedTuple):
    """Where rows are that wait, as columns: sorted by key, those of one key as they came."""

    key: np.ndarray
    chunk: np.ndarray
    run: np.ndarray
    row: np.ndarray

    def at(self, where: np.ndarray | slice) -> _Rows:
        """Some of them."""
        return _Rows(*(column[where] for column in self))

    @property
    def oldest(self) -> int | None:
        """The first chunk that any is of."""
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
        self._first = 0  # of the rows that are gathered

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
    """Windows of rows."""

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
        sizes = counts + 1  # of keys that have got nothing: they are as open as before
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
        """All that wait, and these."""
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
        """Lets go of rows that have left, and keeps the number of runs small."""
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
        """Copies what waits of some runs into one."""
        where = np.flatnonzero(np.isin(self._rows.run, runs))
        joined = _gathered(self._rows.at(where), self._runs)
        for run in runs:
            del self._runs[run]
        self._rows.run[where] = self._hold(joined)
        self._rows.row[where] = np.arange(len(where))


def _gathered(rows: _Rows, runs: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
    """At least one row, in this order."""
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
    """Where each run of equal ones begins."""
    if not values.size:
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def _ranks(counts: np.ndarray) -> np.ndarray:
    """0 .. count - 1 for each count, one after the other."""
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
    """Windows of batches, which come one at a time."""

    def __init__(self, size_of: SizeOf) -> None:
        self._size_of = size_of
        # In the order of their first elements; its beginning is found at once, a dict's is not.
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
