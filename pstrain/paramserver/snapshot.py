"""Copy-on-write snapshots: the rows of one shard as they were at one moment, while they change.

Taking a snapshot copies nothing. Before a row changes, its old value is kept once, unless it has
been read already; values that have been read are freed. Knows nothing of files. Invariant: reads
return the rows as they were at the moment of the snapshot; each row is read once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import CancelledError
from pstrain.kernels import snapshots
from pstrain.paramserver.changed_rows import MarkedRows
from pstrain.paramserver.kept_rows import KeptRows
from pstrain.vocabulary import VariableSpec

Array = NDArray[Any]

_GROUP_BYTES: Final = 128
_BLOCK_BYTES: Final = 16 << 20
# Kept rows are put back in units of this size, which stay in the processor's cache.
_LIST_BYTES: Final = 1 << 20


class Snapshot:
    """The rows of a shard at one moment; made by ``Shard.snapshot``.

    The shard announces every change to the snapshot before it makes the change. ``changed`` has the
    rows that changed since an earlier moment, or is None if they are unknown. The snapshot's lock
    is held while rows are kept, not while they change or are read. It takes the memory of the rows
    that change before they are read, and a bit for every 128 bytes of the slab.
    """

    def __init__(
        self,
        spec: VariableSpec,
        row_start: int,
        slab: Array,
        widths: list[int],
        row_slots: int,
        optimizer: str | None,
        firsts: tuple[float, ...] = (),
        changed: MarkedRows | None = None,
    ) -> None:
        self.spec = spec
        self.row_start = row_start
        self.row_stop = row_start + len(slab)
        self.widths = widths
        self.row_slots = row_slots
        self.optimizer = optimizer
        self.firsts = firsts
        self.changed = changed
        self.dtype = slab.dtype
        self._slab = slab
        self._words = _as_words(slab)
        self._lock = threading.Lock()
        row_bytes = slab.shape[1] * slab.itemsize
        self._group = max(1, _GROUP_BYTES // max(1, row_bytes))
        self._groups = -(-len(slab) // self._group)
        listed = max(1, _LIST_BYTES // max(1, row_bytes * self._group))
        self._block = listed * max(1, _BLOCK_BYTES // _LIST_BYTES)
        self._kept_rows: KeptRows | None = KeptRows(self._words, self._group, listed)
        self._read = 0
        # Blocks that were read, and the lists of the blocks before them, with their last runs. The
        # memory of both is not free yet.
        self._passed: list[tuple[int, int]] = []
        self._ended: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        return int(self._words.nbytes)

    @property
    def kept_bytes(self) -> int:
        """The bytes that were copied because they changed; 0 once the snapshot is closed."""
        kept_rows = self._kept_rows
        return 0 if kept_rows is None else kept_rows.copied_bytes

    def needs(self, slab: Array) -> bool:
        """True if changes of ``slab`` have to be announced before they are made."""
        is_wanted = self._kept_rows is not None and self._read < self._groups
        return is_wanted and slab is self._slab

    def keep_rows(self, ids: NDArray[np.int64]) -> None:
        """Keeps rows ``ids`` (global, in range), which are about to change."""
        with self._lock:
            if self._kept_rows is not None:
                self._kept_rows.keep_rows(self.row_start, ids, self._read)

    def keep_range(self, start: int, stop: int) -> None:
        """Keeps rows ``[start, stop)``, which are about to change."""
        with self._lock:
            if self._kept_rows is not None:
                self._kept_rows.keep_range(
                    start - self.row_start, stop - self.row_start, self._read
                )

    def blocks(self) -> Iterator[Block]:
        """Yields blocks of some MB of rows; read each before the next. Can be iterated once."""
        with ThreadPoolExecutor(1, thread_name_prefix="snapshot-room") as thread:
            making_room: Future[None] | None = None
            for first_group in range(0, self._groups, self._block):
                last_group = min(first_group + self._block, self._groups)
                first = first_group * self._group
                if last_group < self._groups and (making_room is None or making_room.done()):
                    making_room = thread.submit(self._make_room)
                yield Block(self, first, min(last_group * self._group, len(self._slab)))
                self._kept_rows_unless_closed()
                self._read = last_group
                self._free_block(first_group, last_group)

    def _free_block(self, first_group: int, last_group: int) -> None:
        """Frees the kept rows of a block that was read, once no thread can add to them any more."""
        self._passed.append((first_group, last_group))
        if not self._lock.acquire(blocking=False):
            return
        try:
            kept_rows = self._kept_rows_unless_closed()
            for kept, last in self._ended:
                kept_rows.free(kept, last)
            lists = [kept for passed in self._passed for kept in kept_rows.lists(*passed)]
        finally:
            self._lock.release()
        self._passed = []
        self._ended = [(kept, kept_rows.last_of(kept)) for kept in lists]

    def _make_room(self) -> None:
        """Prepares memory for rows that will be kept."""
        with self._lock:
            kept_rows = self._kept_rows
            places = kept_rows.room_to_make() if kept_rows is not None else None
        if kept_rows is not None and places is not None:
            kept_rows.make_room(*places)
            with self._lock:
                kept_rows.open_room(places[1])

    def read(self, first: int, column: int, start: int, target: NDArray[np.uint8]) -> None:
        """Reads a column of the rows from ``first`` on, beginning at byte ``start``, to ``target``.

        Called by blocks: their rows are kept until the iterator of blocks goes on.
        """
        size = self._words.itemsize
        if not len(target):
            return
        edges = np.cumsum([0, *self.widths]) * self.dtype.itemsize // size
        a, b, word = int(edges[column]), int(edges[column + 1]), start // size
        out = target.view(self._words.dtype)
        # Updates go on meanwhile. The old values of rows that they change were kept before, and
        # replace the new values here. This order needs no lock, which would wait for each update.
        snapshots.read_column(self._words, first, a, b, word, out)
        self._kept_rows_unless_closed().read(first, a, b, word, out)

    def read_rows(self, rows: NDArray[np.int64]) -> list[Array]:
        """Returns all columns of ``rows`` (ascending, at least one), each [n, width].

        Called by blocks, as :meth:`read` is.
        """
        out = np.empty((len(rows), self._words.shape[1]), self._words.dtype)
        snapshots.read_rows(self._words, rows, out)
        self._kept_rows_unless_closed().read_rows(rows, out)
        edges = np.cumsum([0, *self.widths])
        table = out.view(self.dtype)
        return [np.ascontiguousarray(table[:, a:b]) for a, b in itertools.pairwise(edges)]

    def _kept_rows_unless_closed(self) -> KeptRows:
        kept_rows = self._kept_rows
        if kept_rows is None:
            raise CancelledError("this snapshot was given up while it was read")
        return kept_rows

    def close(self) -> None:
        """Frees what was kept, and keeps nothing from now on. Idempotent."""
        with self._lock:
            self._read = self._groups
            self._kept_rows = None


class Block:
    """Rows ``[first, last)`` of a snapshot, counted from its first row."""

    def __init__(self, snapshot: Snapshot, first: int, last: int) -> None:
        self._snapshot = snapshot
        self.first = first
        self.rows = last - first

    def column_bytes(self, column: int) -> int:
        """Returns the bytes of a column: of the value, a slot or a row slot."""
        return self.rows * self._snapshot.widths[column] * self._snapshot.dtype.itemsize

    def read(self, column: int, start: int, target: NDArray[np.uint8]) -> None:
        """Reads bytes of a column from ``start`` on; start and size must be of whole values."""
        self._snapshot.read(self.first, column, start, target)

    def columns_of(self, rows: NDArray[np.int64]) -> list[Array]:
        """Returns all columns of ``rows`` of the block (ascending, from the snapshot's first)."""
        return self._snapshot.read_rows(rows)

    def columns(self) -> list[Array]:
        """Returns copies of all columns, each [rows, width]."""
        columns = []
        for index, width in enumerate(self._snapshot.widths):
            data = np.empty(self.column_bytes(index), np.uint8)
            self.read(index, 0, data)
            columns.append(data.view(self._snapshot.dtype).reshape(self.rows, width))
        return columns


def _as_words(slab: Array) -> snapshots.Words:
    """Returns a view of the rows as words, which the kernels copy: of 4 bytes, or else of 1."""
    word = np.dtype(np.uint32 if slab.itemsize % 4 == 0 else np.uint8)
    words = slab.shape[1] * slab.itemsize // word.itemsize
    if not slab.size:
        return np.empty((len(slab), words), word)
    return slab.view(word).reshape(len(slab), words)
