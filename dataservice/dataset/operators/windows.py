"""Gathering elements by key into windows, for the operators that group.

Each key fills a window of its own, which is emitted when it is full. Elements of one key leave in
the order in which they came. So a position consists of the input's position before the oldest chunk
with a waiting element; for each key, how many elements from that chunk on have left; and how many
windows have left since the last chunk was read. Knows nothing of what windows are used for.
Invariant: replaying the input from a position, dropping those elements and then those windows,
yields the same windows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.operators.open_windows import (
    OpenBatches,
    OpenRows,
    OpenWindows,
    ReadyWindows,
    SizeOf,
    Window,
    group_starts,
)
from dataservice.dataset.stream import BatchStream, State

# Returns the keys of the elements of a batch, as int64.
KeysOf: TypeAlias = Callable[[pa.RecordBatch, Callable[[], str]], np.ndarray]


class WindowGatherer:
    """An iterator of windows in the order in which they fill up, and then of the rest by key."""

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
        self._drop_remainder = drop_remainder
        self._open: OpenWindows = OpenBatches(size_of) if whole_batches else OpenRows(size_of)
        self._ready: ReadyWindows = OpenBatches(size_of).rest()
        self._given = 0  # ready windows that have left
        self._skip = 0  # next windows to leave out: they had left before the position was saved
        self._chunk = 0
        # The positions before the chunks that are still needed, and the elements of each by key.
        self._states: dict[int, State] = {}
        self._arrived: dict[int, _Counts] = {}
        self._left = _Counts()  # elements of these chunks that left before the ready windows
        self._drop = _Counts()  # elements to leave out when they are read after a restore
        self._position: State | None = None  # before the ready windows, once it was asked for
        self._ended = False

    def __next__(self) -> Window:
        while self._given == len(self._ready):
            if self._ended:
                raise StopIteration
            self._advance()
            self._given = min(self._skip, len(self._ready))
            self._skip -= self._given
        self._given += 1
        return self._ready.window(self._given - 1)

    def _advance(self) -> None:
        """Reads one chunk into the windows; at the end, makes the rest ready or drops it."""
        state = self._stream.state()
        batch = next(self._stream, None)
        keys = None if batch is None else self._keys_of(batch, self._stream.location)
        self._position = None
        self._left.add(self._ready.keys, self._ready.elements)
        if batch is None or keys is None:
            self._ended = True
            self._ready = self._open.rest()
            if self._drop_remainder:
                self._ready = self._open.rest()
        else:
            self._chunk += 1
            self._states[self._chunk] = state
            self._arrived[self._chunk] = _Counts(keys)
            rows = self._not_dropped(keys)
            self._ready = self._open.add(batch, keys[rows], rows, self._chunk)
        self._forget()

    def _not_dropped(self, keys: np.ndarray) -> np.ndarray:
        """Returns which elements of a chunk had not left before the position was saved."""
        if not self._drop.keys.size:
            return np.arange(len(keys))
        order = np.argsort(keys, kind="stable")
        starts = group_starts(keys[order])
        counts = np.diff(starts, append=len(keys))
        ranks = np.arange(len(keys)) - np.repeat(starts, counts)
        dropped = np.minimum(self._drop.of(keys[order][starts]), counts)
        self._drop.subtract(keys[order][starts], dropped)
        return np.sort(order[ranks >= np.repeat(dropped, counts)])

    def _oldest(self) -> int:
        """Returns the first chunk with an element that waits; the next chunk if none waits."""
        waiting = [oldest for oldest in (self._open.oldest, self._ready.oldest) if oldest]
        return min(waiting, default=self._chunk + 1)

    def _forget(self) -> None:
        """Drops the positions and counts of chunks all of whose elements have left."""
        oldest = self._oldest()
        while self._states and (chunk := next(iter(self._states))) < oldest:
            del self._states[chunk]
            arrived = self._arrived.pop(chunk)
            self._left.subtract(arrived.keys, arrived.counts)

    def state(self, back: int = 0) -> State:
        """Returns the position before the next window; with `back` 1, before the last window."""
        if self._position is None:
            first = next(iter(self._states), None)
            before = self._stream.state() if first is None else self._states[first]
            self._position = {"input": before, "drop": self._left.listed()}
        return {**self._position, "skip": self._given + self._skip - back}

    def restore(self, state: State) -> None:
        """Moves the fresh stream and its windows to `state`."""
        self._stream.restore(state["input"])
        self._drop = _Counts.of_list(state["drop"])
        self._left = _Counts.of_list(state["drop"])
        self._skip = int(state.get("skip", 0))
        self._position = {"input": state["input"], "drop": state["drop"]}

    def close(self) -> None:
        """Closes the stream and forgets its elements."""
        self._stream.close()
        self._open.rest()
        self._ready = self._open.rest()
        self._given = 0

    def location(self) -> str:
        """Says where the rows of the last chunk come from."""
        return self._stream.location()


class _Counts:
    """The numbers of elements by key; `keys` are sorted, and no count is 0.

    Additions are merged only when they outnumber the keys or when counts are asked for, because a
    chunk changes few of many keys.
    """

    def __init__(self, keys: np.ndarray | None = None) -> None:
        given = np.empty(0, np.int64) if keys is None else keys
        self._keys, self._counts = np.unique(given, return_counts=True)
        self._added: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting = 0

    @property
    def keys(self) -> np.ndarray:
        self._settle()
        return self._keys

    @property
    def counts(self) -> np.ndarray:
        self._settle()
        return self._counts

    def add(self, keys: np.ndarray, counts: np.ndarray) -> None:
        """Adds counts of elements; a key may occur several times."""
        if keys.size:
            self._added.append((keys, counts))
            self._waiting += len(keys)
            if self._waiting > len(self._keys):
                self._settle()

    def _settle(self) -> None:
        if not self._added:
            return
        keys, counts = zip((self._keys, self._counts), *self._added, strict=True)
        self._added, self._waiting = [], 0
        found, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        totals = np.zeros(len(found), np.int64)
        np.add.at(totals, inverse, np.concatenate(counts))
        self._keys, self._counts = found[totals != 0], totals[totals != 0]

    def subtract(self, keys: np.ndarray, counts: np.ndarray) -> None:
        """Subtracts counts of elements."""
        self.add(keys, -counts)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Returns the counts of some keys, 0 for unknown ones. There must be at least one count."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.counts[places], 0)

    def listed(self) -> list[list[int]]:
        """Returns the counts in a JSON-able form."""
        pairs: list[list[int]] = np.column_stack([self.keys, self.counts]).tolist()
        return pairs

    @classmethod
    def of_list(cls, listed: list[list[int]]) -> _Counts:
        """Returns the counts that `listed` was given for."""
        counts = cls()
        pairs = np.array(listed, np.int64).reshape(-1, 2)
        counts.add(pairs[:, 0], pairs[:, 1])
        return counts
