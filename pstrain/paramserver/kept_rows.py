"""The memory of copy-on-write snapshots: keeps groups of rows as they were, until they are read.

Fresh memory costs more than the copy into it, so memory is prepared ahead, and reused after a block
was read. Threads that keep or free rows must hold a lock. Readers need none: a list is published
when the call that kept the rows returns, which is before the rows change, and its entries never
change. Knows words, nothing of variables. Invariant: a group is kept once, and its memory is reused
only after its block was freed.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import snapshots

_MAPPED_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 16 << 20


class KeptRows:
    """The kept groups, each of ``group`` rows, in one list per block of ``block`` groups."""

    def __init__(self, rows: snapshots.Words, group: int, block: int) -> None:
        self._rows, self._group, self._block = rows, group, block
        groups = -(-len(rows) // group)
        row_bytes = max(1, rows.shape[1] * rows.itemsize)
        lists = -(-groups // block)
        run_bytes = row_bytes * group * snapshots.RUN
        runs = groups // snapshots.RUN + lists
        self._chunk = max(1, min(runs, _CHUNK_BYTES // run_bytes))
        # The arrays take no memory before they are written to. The extra runs are as many as can be
        # ready, or in preparation, at a time, so that the two ends never meet.
        runs += 4 * self._chunk
        places = runs * snapshots.RUN
        self._bits = np.zeros(-(-groups // 8), np.uint8)
        self._heads = np.zeros(lists, np.int32)
        self._lists = self._heads.copy()
        self._nexts = _empty(runs, np.int32)
        self._owners = _empty(places, np.int32)
        self._kept = _empty(places * group * rows.shape[1], rows.dtype).reshape(
            places * group, rows.shape[1]
        )
        self._room = np.zeros(snapshots.ROOM_ENTRIES, np.int64)
        self._room[snapshots.TOP] = runs

    @property
    def copied_bytes(self) -> int:
        """The bytes copied so far, freed ones included."""
        return int(self._room[snapshots.COPIED]) * self._group * int(self._rows[:1].nbytes)

    def keep_rows(self, row_start: int, ids: NDArray[np.int64], read: int) -> None:
        """Keeps rows ``ids``, counted from ``row_start``, except in groups below ``read``."""
        keep: Any = snapshots.keep_rows
        keep(self._rows, row_start, ids, *self._places(), read)
        self._lists[...] = self._heads

    def keep_range(self, start: int, stop: int, read: int) -> None:
        """Keeps rows ``[start, stop)``, except in groups below ``read``."""
        keep: Any = snapshots.keep_range
        keep(self._rows, start, stop, *self._places(), read)
        self._lists[...] = self._heads

    def lists(self, first_group: int, last_group: int) -> list[int]:
        """Returns the heads of the non-empty lists of ``[first_group, last_group)``.

        Both must begin a block, or be the end.
        """
        blocks = slice(first_group // self._block, -(-last_group // self._block))
        return [head for head in self._lists[blocks].tolist() if head]

    def read(self, first: int, a: int, b: int, start: int, out: Any) -> None:
        """Overwrites what ``read_column`` put into ``out`` with words ``[a, b)`` of kept rows."""
        width = b - a
        low = (first + start // width) // self._group // self._block
        high = (first + (start + len(out) - 1) // width) // self._group // self._block
        snapshots.read_kept(
            self._kept, self._owners, self._nexts, self._lists[low : high + 1].copy(),
            self._group, first, a, b, start, out,
        )  # fmt: skip

    def read_rows(self, which: NDArray[np.int64], out: Any) -> None:
        """Overwrites those of rows ``which`` (ascending) in ``out`` that have been kept."""
        low, high = (int(row) // self._group // self._block for row in (which[0], which[-1]))
        snapshots.read_kept_rows(
            self._kept, self._owners, self._nexts, self._lists[low : high + 1].copy(),
            self._group, which, out,
        )  # fmt: skip

    def last_of(self, kept: int) -> int:
        """Returns the last run of a non-empty list, for :meth:`free`. Needs no lock."""
        return int(snapshots.last_of(kept, self._nexts))

    def free(self, kept: int, last: int) -> None:
        """Frees the runs of a list for reuse; nothing may be added to the list any more."""
        self._nexts[last] = self._room[snapshots.FREE]
        self._room[snapshots.FREE] = kept

    def room_to_make(self) -> tuple[int, int] | None:
        """Returns the range of runs to prepare with :meth:`make_room`; None if enough are ready."""
        used, limit = int(self._room[snapshots.USED]), int(self._room[snapshots.LIMIT])
        return None if limit - used >= 2 * self._chunk else (limit, limit + self._chunk)

    def make_room(self, start: int, stop: int) -> None:
        """Prepares memory for these runs. Needs no lock if only one thread at a time calls it."""
        snapshots.touch(self._kept, self._nexts, self._owners, self._group, start, stop)

    def open_room(self, stop: int) -> None:
        """Marks the runs below ``stop`` as ready."""
        self._room[snapshots.LIMIT] = stop

    def _places(self) -> tuple[Any, ...]:
        return (
            self._group, self._block, self._bits, self._heads, self._nexts, self._owners,
            self._kept, self._room,
        )  # fmt: skip


def _empty(size: int, dtype: Any) -> NDArray[Any]:
    """Allocates an array of zeros, in huge pages if it is large, because access is random."""
    size_bytes = size * np.dtype(dtype).itemsize
    if size_bytes < _MAPPED_BYTES:
        return np.zeros(size, dtype)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)
