"""The rows of one shard as they were at one moment, while they go on changing.

Taking one copies nothing: whoever changes rows keeps what was there before, once, unless it has
been read by then. Knows nothing of files. Invariant: what is read is the moment of the snapshot,
whatever changes meanwhile; each row is read once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import CancelledError
from pstrain.kernels import snapshots
from pstrain.vocabulary import VariableSpec

Array = NDArray[Any]

_GROUP_BYTES: Final = 128
_BLOCK_BYTES: Final = 16 << 20
# Updates wait for no more than what was kept of so much; it stays in the processor's cache.
_PART_BYTES: Final = 1 << 20


class Snapshot:
    """Made by ``Shard.snapshot``, which tells it what is about to change, before that changes.

    Its lock is held while rows are kept, not while they change, so that a reader waits for less
    than an update. Memory: 4 bytes for every 128 of the shard, and what changes before it is read.
    """

    def __init__(
        self,
        spec: VariableSpec,
        row_start: int,
        slab: Array,
        widths: list[int],
        row_slots: int,
        optimizer: str | None,
    ) -> None:
        self.spec = spec
        self.row_start = row_start
        self.row_stop = row_start + len(slab)
        self.widths = widths
        self.row_slots = row_slots
        self.optimizer = optimizer
        self.dtype = slab.dtype
        self._slab = slab
        self._words = _as_words(slab)
        self._lock = threading.Lock()
        row_bytes = slab.shape[1] * slab.itemsize
        self._group = max(1, _GROUP_BYTES // max(1, row_bytes))
        groups = -(-len(slab) // self._group)
        # Neither takes memory before it is written to.
        self._taken = np.zeros(groups, np.int32)
        self._kept = np.empty((groups * self._group, self._words.shape[1]), self._words.dtype)
        self._used = 0
        self._read = 0
        self._closed = False

    @property
    def size_bytes(self) -> int:
        return int(self._words.nbytes)

    @property
    def kept_bytes(self) -> int:
        """What was copied because it changed."""
        return self._used * self._group * int(self._words[:1].nbytes)

    def needs(self, slab: Array) -> bool:
        """Whether changes of ``slab`` have to be told before they are made."""
        return slab is self._slab and self._read < len(self._taken)

    def keep_rows(self, ids: NDArray[np.int64]) -> None:
        """Rows ``ids`` (global, in range) are about to change."""
        with self._lock:
            self._used = snapshots.keep_rows(
                self._words, self.row_start, ids, self._group,
                self._taken, self._kept, self._used, self._read,
            )  # fmt: skip

    def keep_range(self, start: int, stop: int) -> None:
        """Rows ``[start, stop)`` are about to change."""
        with self._lock:
            self._used = snapshots.keep_range(
                self._words, start - self.row_start, stop - self.row_start, self._group,
                self._taken, self._kept, self._used, self._read,
            )  # fmt: skip

    def blocks(self) -> Iterator[Block]:
        """Some MB of rows at a time, to be read before the next. May be iterated once."""
        row_bytes = self._words.shape[1] * self._words.itemsize
        groups = max(1, _BLOCK_BYTES // max(1, row_bytes * self._group))
        for first_group in range(0, len(self._taken), groups):
            last_group = min(first_group + groups, len(self._taken))
            first = first_group * self._group
            yield Block(self, first, min(last_group * self._group, len(self._slab)))
            with self._lock:
                self._check()
                self._read = max(self._read, last_group)

    def read(self, first: int, column: int, start: int, target: NDArray[np.uint8]) -> None:
        """Bytes of a column, counted from row ``first`` and there from ``start``, into ``target``.

        For blocks: what changes is kept until their iterator goes on.
        """
        size = self._words.itemsize
        edges = np.cumsum([0, *self.widths]) * self.dtype.itemsize // size
        a, b = int(edges[column]), int(edges[column + 1])
        for at in range(0, len(target), _PART_BYTES):
            out = target[at : at + _PART_BYTES].view(self._words.dtype)
            word = (start + at) // size
            # Updates go on: what they change is kept before, and then put back in its place. Seen
            # with the lock, because whoever changed what was read here let go of it before.
            snapshots.read_column(self._words, first, a, b, word, out)
            with self._lock:
                self._check()
                snapshots.read_kept(self._kept, first, a, b, word, self._group, self._taken, out)

    def _check(self) -> None:
        if self._closed:
            raise CancelledError("this snapshot was given up while it was read")

    def close(self) -> None:
        """Nothing is kept from now on. Idempotent."""
        with self._lock:
            self._closed = True
            self._read = len(self._taken)
            self._used = 0
            self._kept = np.empty((0, 0), self._words.dtype)


class Block:
    """Rows ``[first, last)``, counted from the snapshot's first."""

    def __init__(self, snapshot: Snapshot, first: int, last: int) -> None:
        self._snapshot = snapshot
        self._first = first
        self.rows = last - first

    def column_bytes(self, column: int) -> int:
        """Size of a column: the value, a slot or a row slot."""
        return self.rows * self._snapshot.widths[column] * self._snapshot.dtype.itemsize

    def read(self, column: int, start: int, target: NDArray[np.uint8]) -> None:
        """Bytes of a column from ``start`` on; both that and the size are of whole values."""
        self._snapshot.read(self._first, column, start, target)

    def columns(self) -> list[Array]:
        """All columns, each [rows, width], in memory of their own."""
        columns = []
        for index, width in enumerate(self._snapshot.widths):
            data = np.empty(self.column_bytes(index), np.uint8)
            self.read(index, 0, data)
            columns.append(data.view(self._snapshot.dtype).reshape(self.rows, width))
        return columns


def _as_words(slab: Array) -> snapshots.Words:
    """Rows as the kernels move them: by 4 bytes where values have as many."""
    word = np.dtype(np.uint32 if slab.itemsize % 4 == 0 else np.uint8)
    words = slab.shape[1] * slab.itemsize // word.itemsize
    if not slab.size:
        return np.empty((len(slab), words), word)
    return slab.view(word).reshape(len(slab), words)
