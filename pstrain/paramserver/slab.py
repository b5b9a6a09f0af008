"""The memory of a shard's rows: allocated in one piece, widened in parts while rows are read.

Knows rows and columns, nothing of variables or of who writes. Invariant: a reader gets each row
whole from its present place, even while rows move; the old memory of moved rows is freed at once,
so that widening a table never takes the memory of two tables.
"""

from __future__ import annotations

import functools
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import bfloat16, updates
from pstrain.kernels.prefetch import aligned_empty
from pstrain.serialization.bfloat16 import round_into

Array = NDArray[Any]

_MAPPED_BYTES: Final = 4 << 20
_HUGE_PAGE_BYTES: Final = 2 << 20
# Rows are moved in parts of this size; a reader waits for one part at most.
_PART_BYTES: Final = 4 << 20


class Slab:
    """Rows [n, columns]. One thread at a time may write or widen, while any number read."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        self._pages = _Pages(shape, dtype)
        self.array = self._pages.array
        """All rows, not a copy. Must not be used between :meth:`widen` and the last move."""
        self.widening: _Widening | None = None
        """The move of rows that :meth:`widen` began and :meth:`move` has not ended."""
        self._fair_lock = _FairLock()

    def gather(self, width: int, rows: NDArray[np.int64], row_start: int, out: Array) -> None:
        """Copies the first ``width`` columns of ``rows``, counted from ``row_start``.

        This method and :meth:`read` round numbers to bfloat16 if ``out`` is uint16.
        """
        if self._read(functools.partial(_gather, width, rows, row_start, out)):
            return
        with self._fair_lock.held():
            if self.widening is None:
                _gather(width, rows, row_start, out, self.array)
            else:
                self.widening.gather(width, rows, row_start, out)

    def read(self, start: int, stop: int, out: Array) -> None:
        """Copies the first columns of rows ``[start, stop)``, as many as ``out`` has."""
        if self._read(functools.partial(_copy, start, stop, out)):
            return
        with self._fair_lock.held():
            if self.widening is None:
                _copy(start, stop, out, self.array)
            else:
                self.widening.read(start, stop, out)

    def _read(self, copy: Callable[[Array], None]) -> bool:
        """Copies without a lock; returns False if rows moved meanwhile, so zeros may be in it."""
        pages = self._pages
        if self.widening is not None:
            return False
        copy(pages.array)
        return pages is self._pages and self.widening is None

    def widen(self, width: int, firsts: Array, *, is_kept: bool) -> None:
        """Begins to move the first ``width`` columns to a slab that has ``firsts`` after them.

        The caller must follow with :meth:`move`. ``is_kept`` keeps the old memory, for a reader
        that still uses the old array.
        """
        shape = (len(self.array), width + len(firsts))
        new = _Pages(shape, self.array.dtype.str)
        self.widening = _Widening(self._pages, new, width, firsts, is_kept)

    def move(self, most_bytes: int | None = None) -> int:
        """Moves about ``most_bytes`` of rows, or all; returns how many are left, 0 if none were."""
        moved_bytes = 0
        while (widening := self.widening) is not None:
            if most_bytes is not None and moved_bytes >= most_bytes:
                return widening.left
            with self._fair_lock.held():
                moved_bytes += widening.move()
                if not widening.left:
                    # _read relies on this order of assignments.
                    self._pages = widening.new
                    self.array = widening.new.array
                    self.widening = None
        return 0


class _Pages:
    """Memory that can be returned to the system in parts."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        self._memory: mmap.mmap | None = None
        if size < _MAPPED_BYTES:
            self.array = aligned_empty(shape, dtype)
            return
        try:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"{shape[0]:,} rows of {shape[1]:,} numbers take {size:,} bytes: {error}"
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.array = np.frombuffer(self._memory, dtype).reshape(shape)
        self._given_back = 0

    def give_back(self, stop: int) -> None:
        """Frees the memory of rows below ``stop``, which may read as zeros afterwards."""
        if self._memory is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        end = stop * self.array[:1].nbytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if end > self._given_back:
            self._memory.madvise(mmap.MADV_DONTNEED, self._given_back, end - self._given_back)
            self._given_back = end


class _Widening:
    def __init__(self, old: _Pages, new: _Pages, width: int, firsts: Array, is_kept: bool) -> None:
        self.new = new
        self._old = old
        self._width = width
        self._firsts = firsts
        self._is_kept = is_kept
        self._moved = 0
        self._step = max(1, _PART_BYTES // max(1, new.array[:1].nbytes))

    @property
    def left(self) -> int:
        return len(self._old.array) - self._moved

    def move(self) -> int:
        """Moves one part of the rows; returns its bytes."""
        part = slice(self._moved, min(self._moved + self._step, len(self._old.array)))
        old, new = self._old.array[part], self.new.array[part]
        if new.dtype == np.float32:
            updates.move_rows(old, self._width, self._firsts, new)
        else:
            new[:, : self._width] = old[:, : self._width]
            new[:, self._width :] = self._firsts
        self._moved = part.stop
        if not self._is_kept:
            self._old.give_back(part.stop)
        return new.nbytes

    def gather(self, width: int, rows: NDArray[np.int64], row_start: int, out: Array) -> None:
        is_moved = rows - row_start < self._moved
        for array, which in ((self.new.array, is_moved), (self._old.array, ~is_moved)):
            part = np.empty((np.count_nonzero(which), width), out.dtype)
            _gather(width, rows[which], row_start, part, array)
            out[which] = part

    def read(self, start: int, stop: int, out: Array) -> None:
        middle = min(max(start, self._moved), stop)
        _copy(start, middle, out[: middle - start], self.new.array)
        _copy(middle, stop, out[middle - start :], self._old.array)


class _FairLock:
    """A fair lock: a thread that waits gets it before its present holder gets it again."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._now = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._next:
            self._now.acquire()
        try:
            yield
        finally:
            self._now.release()


def _gather(width: int, rows: NDArray[np.int64], row_start: int, out: Array, array: Array) -> None:
    if out.dtype == np.uint16:
        bfloat16.gather_bfloat16(array, width, row_start, rows, out)
    elif array.dtype == np.float32:
        updates.gather_rows(array, width, row_start, rows, out)
    else:
        np.take(array[:, :width], rows - row_start, axis=0, out=out, mode="clip")


def _copy(start: int, stop: int, out: Array, array: Array) -> None:
    if out.dtype == np.uint16:
        round_into(out, array[start:stop])
    else:
        out[...] = array[start:stop, : out.shape[1]]
