"""A dataset's elements by number, so that whoever reads a range, and how often, reads the same.

Knows nothing of trainers. Invariant: range ``[start, start + count)`` is those elements of one pass
over the dataset, on whatever process it is read.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import open_dataset

# Threads ask for neighbouring ranges in any order, and what lies between them is others'.
_KEPT_BYTES = 64 << 20
_RANGES_KEPT = 4
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
        self._elements: Iterator[Any] | None = None
        self._next = 0
        self._kept: deque[Any] = deque()
        self._kept_bytes = 0

    def __iter__(self) -> RangeReader:
        return self

    def __next__(self) -> RangeReader:
        return self

    def read(self, start: int, count: int) -> list[Any]:
        """Those elements; fewer where the data end before."""
        with self._lock:
            if self._elements is None or start < self._next - len(self._kept):
                self._open()
            try:
                self._read_on(start + count, _RANGES_KEPT * count)
            except BaseException:
                # What goes on after an error is not known to go on where it was.
                self.close()
                raise
            first = self._next - len(self._kept)
            return list(itertools.islice(self._kept, max(0, start - first), start - first + count))

    def close(self) -> None:
        """Ends reading. Idempotent."""
        elements, self._elements = self._elements, None
        if elements is not None and hasattr(elements, "close"):
            elements.close()

    def _read_on(self, stop: int, keep_at_least: int) -> None:
        assert self._elements is not None
        for element in itertools.islice(self._elements, max(0, stop - self._next)):
            self._kept.append(element)
            self._next += 1
            self._kept_bytes += _size_bytes(element)
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > keep_at_least:
                self._kept_bytes -= _size_bytes(self._kept.popleft())

    def _open(self) -> None:
        self.close()
        self._kept.clear()
        self._next = self._kept_bytes = 0
        self._elements = open_dataset(self._dataset, self._epoch, InputContext())


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


def _size_bytes(element: Any) -> int:
    return max(_SMALLEST_BYTES, getattr(element, "nbytes", 0))
