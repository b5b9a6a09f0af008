"""The rows of one shard as they were at one moment, while they go on changing.

Taking one copies nothing: whoever changes rows keeps what was there before, once, unless it has
been read by then. Knows nothing of files. Invariant: what is read is the moment of the snapshot,
whatever changes meanwhile; each row is read once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import CancelledError
from pstrain.kernels import snapshots
from pstrain.vocabulary import VariableSpec

Array = NDArray[Any]

_GROUP_BYTES = 128
_BLOCK_BYTES = 16 << 20


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

    def blocks(self) -> Iterator[list[Array]]:
        """The columns (value, slots, row slots) of some MB of rows at a time, each [rows, width].

        Arrays are valid until the next. May be iterated once.
        """
        word_bytes = self._words.itemsize
        words = self._words.shape[1]
        per_block = max(1, _BLOCK_BYTES // max(1, words * word_bytes * self._group))
        widths = [width * self.dtype.itemsize // word_bytes for width in self.widths]
        edges = np.cumsum([0, *widths])
        rows = min(per_block * self._group, len(self._slab))
        out = np.empty(rows * words, self._words.dtype)
        for first_group in range(0, len(self._taken), per_block):
            last_group = min(first_group + per_block, len(self._taken))
            first = first_group * self._group
            last = min(last_group * self._group, len(self._slab))
            # Updates go on: what they change is kept before, and then put back in its place. Seen
            # with the lock, because whoever changed what was read here let go of it before.
            snapshots.read_rows(self._words, first, last, edges, out)
            with self._lock:
                if self._closed:
                    raise CancelledError("this snapshot was given up while it was read")
                snapshots.read_kept(
                    self._kept, first, last, self._group, self._taken, edges, out,
                )  # fmt: skip
                self._read = last_group
            yield self._columns(out.view(np.uint8), last - first)

    def close(self) -> None:
        """Nothing is kept from now on. Idempotent."""
        with self._lock:
            self._closed = True
            self._read = len(self._taken)
            self._used = 0
            self._kept = np.empty((0, 0), self._words.dtype)

    def _columns(self, out: NDArray[np.uint8], rows: int) -> list[Array]:
        columns, at = [], 0
        for width in self.widths:
            size = rows * width * self.dtype.itemsize
            columns.append(out[at : at + size].view(self.dtype).reshape(rows, width))
            at += size
        return columns


def _as_words(slab: Array) -> snapshots.Words:
    """Rows as the kernels move them: by 4 bytes where values have as many."""
    word = np.dtype(np.uint32 if slab.itemsize % 4 == 0 else np.uint8)
    words = slab.shape[1] * slab.itemsize // word.itemsize
    if not slab.size:
        return np.empty((len(slab), words), word)
    return slab.view(word).reshape(len(slab), words)
