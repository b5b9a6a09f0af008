"""A dataset's elements by number, so that whoever reads a range, and how often, reads the same.

Knows nothing of who deals ranges. Invariant: range ``[start, start + length)`` is those elements of
one pass over the dataset, on whatever process it is read, as far as the dataset is repeatable.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from pstrain.errors import CancelledError
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import open_dataset

# Threads ask for neighbouring ranges in any order, and ranges of a lost trainer are read again.
_KEPT_BYTES = 64 << 20
# What an element counts at least, so that there is a bound on their number too.
_SMALLEST_BYTES = 1 << 10


class RangeReader:
    """Reads ranges of one pass, best in ascending order. Thread-safe.

    Goes through the data once; elements that nobody asks for are passed over. A range that lies
    further back than what is kept makes it start again. As an iterator it gives itself for ever.
    """

    def __init__(self, dataset: Any, epoch: int = 0) -> None:
        self._dataset, self._epoch = dataset, epoch
        self._lock = threading.Lock()
        self._is_closed = False
        self._elements: Iterator[Any] | None = None
        self._next = 0
        self._kept: deque[Any] = deque()
        self._kept_bytes = 0
        self._sizes = _Sizes()

    def __iter__(self) -> RangeReader:
        return self

    def __next__(self) -> RangeReader:
        return self

    def read(self, start: int, length: int) -> list[Any]:
        """Those elements; fewer where the data end before. CancelledError once it is closed."""
        try:
            with self._lock:
                return self._read(start, length)
        finally:
            # Whoever closed it while the lock was held, if only just still, has left it to this.
            if self._is_closed:
                self._stop_if_idle()

    def close(self) -> None:
        """Ends reading for good. Idempotent; never waits for a thread that reads, which ends it."""
        self._is_closed = True
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def _read(self, start: int, length: int) -> list[Any]:
        try:
            if self._elements is None or start < self._next - len(self._kept):
                self._open()
            return self._read_on(start, start + length)
        except BaseException:
            # What goes on after an error is not known to go on where it was.
            self._stop()
            raise

    def _read_on(self, start: int, stop: int) -> list[Any]:
        assert self._elements is not None
        for element in itertools.islice(self._elements, max(0, stop - self._next)):
            self._kept.append(element)
            self._next += 1
            self._kept_bytes += self._sizes.of(element)
            while self._kept_bytes > _KEPT_BYTES and self._next - len(self._kept) < start:
                self._kept_bytes -= self._sizes.of(self._kept.popleft())
        first = self._next - len(self._kept)
        return list(itertools.islice(self._kept, max(0, start - first), stop - first))

    def _open(self) -> None:
        self._stop()
        if self._is_closed:
            raise CancelledError("these ranges are read no more: their pass is over")
        self._elements = open_dataset(self._dataset, self._epoch, InputContext())

    def _stop(self) -> None:
        elements, self._elements = self._elements, None
        self._kept.clear()
        self._next = self._kept_bytes = 0
        if elements is not None and hasattr(elements, "close"):
            elements.close()


class _Sizes:
    """About how large elements are: to ask each takes longer than to make it."""

    def __init__(self) -> None:
        self._row_bytes = 0.0

    def of(self, element: Any) -> int:
        rows = getattr(element, "num_rows", 0)
        if rows and not self._row_bytes:
            self._row_bytes = element.nbytes / rows
        return max(_SMALLEST_BYTES, int(rows * self._row_bytes))


class RangeSource:
    """A dataset function whose epochs are RangeReaders."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self) -> Ranges:
        return Ranges(self._dataset)


class Ranges:
    """What can be opened at an epoch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def iterator(self, epoch: int) -> RangeReader:
        return RangeReader(self._dataset, epoch)
