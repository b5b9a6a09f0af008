"""The memory of copy-on-write snapshots: groups of rows as they were, until they are read.

Fresh memory costs more than what is copied there, so it is made ready ahead, and used again after
a block was read. Whoever keeps or frees holds a lock; whoever reads needs none: a list can be
had once the call that kept is over, which comes before the rows change, and what is in it stays as
it is. Knows words, nothing of variables. Invariant: a group is kept once, and its place is
another's only after its block was freed.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import snapshots

_MAPPED_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 16 << 20


class Keeping:
    """Kept groups of ``group`` of the ``rows``, in lists by blocks of ``block`` groups."""

    def __init__(self, rows: snapshots.Words, group: int, block: int) -> None:
        self._rows, self._group, self._block = rows, group, block
        groups = -(-len(rows) // group)
        row_bytes = max(1, rows.shape[1] * rows.itemsize)
        lists = -(-groups // block)
        run_bytes = row_bytes * group * snapshots.RUN
        runs = groups // snapshots.RUN + lists
        self._chunk = max(1, min(runs, _CHUNK_BYTES // run_bytes))
        # None of it takes memory before it is written to. There are as many runs beyond those
        # that can ever be used as may be ready at a time, and being made: so both ends never meet.
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
        """What was ever copied."""
        return int(self._room[snapshots.COPIED]) * self._group * int(self._rows[:1].nbytes)

    def keep_rows(self, row_start: int, ids: NDArray[np.int64], read: int) -> None:
        """Rows ``ids``, counted from ``row_start``, but those of groups below ``read``."""
        keep: Any = snapshots.keep_rows
        keep(self._rows, row_start, ids, *self._places(), read)
        self._lists[...] = self._heads

    def keep_range(self, start: int, stop: int, read: int) -> None:
        """Rows ``[start, stop)``, but those of groups below ``read``."""
        keep: Any = snapshots.keep_range
        keep(self._rows, start, stop, *self._places(), read)
        self._lists[...] = self._heads

    def lists(self, first_group: int, last_group: int) -> list[int]:
        """What is kept of these groups by now; first and last begin a block, or are the end."""
        blocks = slice(first_group // self._block, -(-last_group // self._block))
        return [head for head in self._lists[blocks].tolist() if head]

    def read(self, first: int, a: int, b: int, start: int, out: Any) -> None:
        """Puts words ``[a, b)`` of rows that are kept by now where ``read_column`` put others."""
        width = b - a
        low = (first + start // width) // self._group // self._block
        high = (first + (start + len(out) - 1) // width) // self._group // self._block
        snapshots.read_kept(
            self._kept, self._owners, self._nexts, self._lists[low : high + 1].copy(),
            self._group, first, a, b, start, out,
        )  # fmt: skip

    def read_rows(self, which: NDArray[np.int64], out: Any) -> None:
        """Puts those of rows ``which``, ascending, that are kept by now where others were put."""
        low, high = (int(row) // self._group // self._block for row in (which[0], which[-1]))
        snapshots.read_kept_rows(
            self._kept, self._owners, self._nexts, self._lists[low : high + 1].copy(),
            self._group, which, out,
        )  # fmt: skip

    def last_of(self, kept: int) -> int:
        """The last run of a list that is not empty, for :meth:`free`. Needs no lock."""
        return int(snapshots.last_of(kept, self._nexts))

    def free(self, kept: int, last: int) -> None:
        """The runs of a list are for others; nothing may be added to it any more."""
        self._nexts[last] = self._room[snapshots.FREE]
        self._room[snapshots.FREE] = kept

    def room_to_make(self) -> tuple[int, int] | None:
        """Runs to be made ready with :meth:`make_room`; None where enough are."""
        used, limit = int(self._room[snapshots.USED]), int(self._room[snapshots.LIMIT])
        return None if limit - used >= 2 * self._chunk else (limit, limit + self._chunk)

    def make_room(self, start: int, stop: int) -> None:
        """Memory for these runs. Needs no lock, if one thread at a time does it."""
        snapshots.touch(self._kept, self._nexts, self._owners, self._group, start, stop)

    def open_room(self, stop: int) -> None:
        """Runs below ``stop`` were made ready."""
        self._room[snapshots.LIMIT] = stop

    def _places(self) -> tuple[Any, ...]:
        return (
            self._group, self._block, self._bits, self._heads, self._nexts, self._owners,
            self._kept, self._room,
        )  # fmt: skip


def _empty(size: int, dtype: Any) -> NDArray[Any]:
    """In large pages: what is kept lies anywhere."""
    size_bytes = size * np.dtype(dtype).itemsize
    if size_bytes < _MAPPED_BYTES:
        return np.zeros(size, dtype)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)
