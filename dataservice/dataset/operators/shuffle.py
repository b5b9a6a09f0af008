"""The operator that permutes elements within consecutive buffers.

The rows are grouped into buffers of `buffer_size`, and each buffer is permuted by a generator keyed
by (seed, epoch, buffer). Over one window of a distributed dataset, the buffer is the whole window,
unless the window is too large for memory.
The files and row groups below are also read in a permuted order. Invariant: the order is a pure
function of (seed, epoch, position), so that a saved position needs no random state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import join_batches
from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.random_bits import random_bits
from dataservice.dataset.seeds import check_seeds, effective_seed
from dataservice.dataset.stream import (
    CHUNK_ROWS,
    BatchStream,
    OverStream,
    RowCutter,
    RunContext,
    State,
)
from dataservice.runtime.arguments import check_true_or_false, integer_at_least
from dataservice.runtime.number_arrays import from_numbers
from dataservice.sharding import WINDOW_ROWS, order_key

# A window whose rows were counted in planning has fewer, unless a row group is larger.
_WINDOW_BUFFER_ROWS: Final = 2 * WINDOW_ROWS

_SORTED_AT_ONCE: Final = 4_000_000
_LEADING_BITS: Final = 4


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Shuffle(Operator):
    """A permutation of the elements; without a `seed`, `drawn_seed` is a random one."""

    kind: ClassVar[str] = "shuffle"
    # A seed that was drawn differs each time the program runs; saved positions carry it.
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"drawn_seed"})
    buffer_size: int
    seed: int | None = None
    drawn_seed: int | None = None
    reshuffle_each_iteration: bool = True

    def __post_init__(self) -> None:
        size = integer_at_least(self.buffer_size, 1, "shuffle buffer_size")
        object.__setattr__(self, "buffer_size", size)
        check_seeds(self)
        check_true_or_false(reshuffle_each_iteration=self.reshuffle_each_iteration)

    @property
    def effective_seed(self) -> int:
        """The seed that was given, or else drawn."""
        return effective_seed(self)

    def epoch_key(self, epoch: int) -> int:
        """Returns the epoch that keys the order; 0 if the order is the same in all epochs."""
        return epoch if self.reshuffle_each_iteration else 0

    def input_context(self, context: RunContext) -> RunContext:
        order = (self.effective_seed, self.epoch_key(context.epoch))
        return dataclasses.replace(context, split_order=None if self.batched else order)

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        epoch = self.epoch_key(context.epoch)
        run = (self.effective_seed, *dataclasses.replace(context, epoch=epoch).key)
        if self.batched:
            return _BatchShuffleStream(
                stream, self.buffer_size, lambda buffer: order_key(*run, buffer)
            )
        least = 1 if context.window is None else _WINDOW_BUFFER_ROWS
        rows = max(self.buffer_size, least)
        if rows == 1:
            # A buffer of one row changes nothing, and each row would become a batch of its own.
            return stream
        return _RowShuffleStream(stream, rows, lambda buffer: order_key(*run, buffer))


def permutation(count: int, key: int) -> np.ndarray:
    """Returns a permutation of range(count), as integers, that depends on `key` alone.

    NumPy's own permutations are not stable across its versions.
    """
    bits = random_bits(count, key)
    return np.argsort(bits) if count < _SORTED_AT_ONCE else _argsort(bits)


def _argsort(bits: np.ndarray) -> np.ndarray:
    """Does what `np.argsort` does with half of its memory, and for many random bits in less time.

    Numbers with the same leading bits are sorted at a time: they fit into caches better.
    """
    order = np.empty(len(bits), np.uint32 if len(bits) <= 1 << 32 else np.int64)
    leading = np.empty(len(bits), np.uint8)
    np.right_shift(bits, np.uint64(64 - _LEADING_BITS), out=leading, casting="unsafe")
    begin = 0
    for each in range(1 << _LEADING_BITS):
        rows = np.flatnonzero(leading == each)
        end = begin + len(rows)
        order[begin:end] = rows[np.argsort(bits[rows])]
        begin = end
    return order


class _RowShuffleStream(BatchStream):
    def __init__(self, stream: BatchStream, buffer_rows: int, key_of: Callable[[int], int]) -> None:
        self._cutter = RowCutter(stream)
        self._buffer_rows = buffer_rows
        self._key_of = key_of
        self._number = 0  # of the buffer
        self._row = 0  # of the permuted buffer
        self._rows: pa.RecordBatch | None = None
        self._order = np.empty(0, dtype=np.int64)
        self._state: State | None = None  # of the input at the beginning of the buffer

    def __next__(self) -> pa.RecordBatch:
        if self._rows is None:
            self._fill()
        assert self._rows is not None
        chosen = self._order[self._row : self._row + CHUNK_ROWS]
        batch = self._rows.take(from_numbers(chosen))
        self._row += len(chosen)
        if self._row >= len(self._order):
            self._rows, self._row = None, 0
            self._number += 1
        return batch

    def _fill(self) -> None:
        self._state = self._cutter.state()
        pieces = self._cutter.cut(self._buffer_rows)
        if not pieces:
            raise StopIteration
        # Before the rows are joined, when they are in memory once.
        count = sum(piece.num_rows for piece in pieces)
        self._order = permutation(count, self._key_of(self._number))
        self._rows = join_batches(pieces)

    def state(self) -> State:
        begin = self._cutter.state() if self._rows is None else self._state
        return {"input": begin, "buffer": self._number, "row": self._row}

    def restore(self, state: State) -> None:
        self._cutter.restore(state["input"])
        self._number, self._row = int(state["buffer"]), int(state["row"])

    def close(self) -> None:
        self._cutter.close()
        self._rows = None

    def location(self) -> str:
        return f"a shuffled buffer of {self._cutter.location()}"


class _BatchShuffleStream(OverStream):
    def __init__(
        self, stream: BatchStream, buffer_batches: int, key_of: Callable[[int], int]
    ) -> None:
        super().__init__(stream)
        self._buffer_batches = buffer_batches
        self._key_of = key_of
        self._number = 0
        self._position = 0
        self._batches: list[pa.RecordBatch] = []
        self._state: State | None = None

    def __next__(self) -> pa.RecordBatch:
        if not self._batches:
            self._fill()
        batch = self._batches[self._position]
        self._position += 1
        if self._position >= len(self._batches):
            self._batches, self._position = [], 0
            self._number += 1
        return batch

    def _fill(self) -> None:
        self._state = self._stream.state()
        batches: list[pa.RecordBatch] = []
        while len(batches) < self._buffer_batches:
            batch = next(self._stream, None)
            if batch is None:
                break
            batches.append(batch)
        if not batches:
            raise StopIteration
        order = permutation(len(batches), self._key_of(self._number))
        self._batches = [batches[index] for index in order]

    def state(self) -> State:
        begin = self._state if self._batches else self._stream.state()
        return {"input": begin, "buffer": self._number, "row": self._position}

    def restore(self, state: State) -> None:
        self._stream.restore(state["input"])
        self._number, self._position = int(state["buffer"]), int(state["row"])

    def close(self) -> None:
        super().close()
        self._batches = []
