"""Gathering elements by key into windows, for the operators that group.

Each key fills a window of its own, which is emitted when it is full. Elements of one key leave in
the order in which they came; so a position is that of the oldest chunk with an element that waits,
and for each key how many of the elements from there on have left. Invariant: replaying the input
from there and dropping these yields the same windows in the same order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.stream import BatchStream, State

# Keys of the elements of a batch, int64; and how many elements fill the window of a key.
KeysOf: TypeAlias = Callable[[pa.RecordBatch, Callable[[], str]], np.ndarray]
SizeOf: TypeAlias = Callable[[int], int]


class _Piece(NamedTuple):
    """Elements of one key and one chunk."""

    chunk: int
    rows: pa.RecordBatch
    elements: int


class Window(NamedTuple):
    """Elements of one key, in order: rows in pieces, or one batch each."""

    key: int
    pieces: tuple[_Piece, ...]

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """Its rows."""
        return [piece.rows for piece in self.pieces]

    @property
    def elements(self) -> int:
        """How many it holds."""
        return sum(piece.elements for piece in self.pieces)


class WindowGatherer:
    """Windows in the order in which they fill up; at the end those that are not full, by key."""

    def __init__(
        self,
        stream: BatchStream,
        keys_of: KeysOf,
        size_of: SizeOf,
        *,
        whole_batches: bool,
        drop_remainder: bool = False,
    ) -> None:
        self._stream = stream
        self._keys_of = keys_of
        self._size_of = size_of
        self._whole_batches = whole_batches
        self._drop_remainder = drop_remainder
        self._open: dict[int, list[_Piece]] = {}
        self._full: deque[Window] = deque()
        self._chunk = 0
        # Of the chunks that are still needed: their positions, and their elements by key.
        self._states: dict[int, State] = {}
        self._arrived: dict[int, Counter[int]] = {}
        self._waiting: Counter[int] = Counter()  # elements in windows here, by chunk
        self._left: Counter[int] = Counter()  # by key, of the chunks that are still needed
        self._drop: Counter[int] = Counter()
        self._restored: State | None = None
        self._ended = False

    def __next__(self) -> Window:
        self._forget()
        while not self._full:
            if self._ended:
                raise StopIteration
            self._advance()
        window = self._full.popleft()
        self._left[window.key] += window.elements
        for piece in window.pieces:
            self._waiting[piece.chunk] -= piece.elements
        return window

    def _advance(self) -> None:
        """Reads one chunk into the windows."""
        state = self._stream.state()
        batch = next(self._stream, None)
        self._restored = None
        if batch is None:
            self._ended = True
            if self._drop_remainder:
                self._waiting.clear()
            else:
                self._full.extend(Window(key, tuple(self._open[key])) for key in sorted(self._open))
            self._open.clear()
            return
        self._chunk += 1
        self._states[self._chunk] = state
        keys = self._keys_of(batch, self._stream.location)
        self._arrived[self._chunk] = Counter(keys.tolist())
        completed: list[tuple[int, Window]] = []
        order = np.argsort(keys, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            completed += self._fill(int(keys[rows[0]]), rows, batch)
        self._full.extend(window for _, window in sorted(completed, key=lambda pair: pair[0]))
        self._forget()

    def _fill(self, key: int, rows: np.ndarray, batch: pa.RecordBatch) -> list[tuple[int, Window]]:
        """Adds rows of `batch` to the window of `key`; what fills up, with the row that did it."""
        dropped = min(self._drop[key], len(rows))
        if dropped:
            self._drop[key] -= dropped
            rows = rows[dropped:]
        if not len(rows):
            return []
        whole = self._whole_batches or len(rows) == batch.num_rows
        taken = batch if whole else batch.take(pa.array(rows))
        completed: list[tuple[int, Window]] = []
        size, first = self._size_of(key), 0
        while first < len(rows):
            pieces = self._open.setdefault(key, [])
            missing = size - sum(piece.elements for piece in pieces)
            count = min(missing, len(rows) - first)
            part = taken if self._whole_batches else taken.slice(first, count)
            pieces.append(_Piece(self._chunk, part, count))
            self._waiting[self._chunk] += count
            first += count
            if count == missing:
                completed.append((int(rows[first - 1]), Window(key, tuple(self._open.pop(key)))))
        return completed

    def _oldest(self) -> int:
        """The first chunk with an element that waits."""
        return next((chunk for chunk in self._states if self._waiting[chunk]), self._chunk + 1)

    def _forget(self) -> None:
        """Lets go of the chunks before it, all of whose elements have left."""
        oldest = self._oldest()
        while self._states and (chunk := next(iter(self._states))) < oldest:
            del self._states[chunk]
            self._left.subtract(self._arrived.pop(chunk))

    def state(self, last: Window | None = None) -> State:
        """The position before the next window, or before `last`, which must be the last one."""
        if self._restored is not None:
            return self._restored
        oldest = self._oldest()
        left = Counter(self._left)
        if last is not None:
            oldest = min(oldest, last.pieces[0].chunk)
            left[last.key] -= last.elements
        if oldest > self._chunk:
            return {"input": self._stream.state(), "drop": _listed(self._drop)}
        for chunk in range(next(iter(self._states)), oldest):
            left.subtract(self._arrived[chunk])
        return {"input": self._states[oldest], "drop": _listed(left)}

    def restore(self, state: State) -> None:
        """Moves the fresh stream and its windows to `state`."""
        self._stream.restore(state["input"])
        self._drop = Counter({int(key): int(count) for key, count in state["drop"]})
        self._left = Counter(self._drop)
        self._restored = state

    def close(self) -> None:
        """Closes the stream and forgets its elements."""
        self._stream.close()
        self._open.clear()
        self._full.clear()

    def location(self) -> str:
        """Where the rows of the last chunk come from."""
        return self._stream.location()


def _listed(counts: Counter[int]) -> list[list[int]]:
    return [[key, count] for key, count in sorted(counts.items()) if count]
