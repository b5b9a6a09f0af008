"""Reads a dataset's elements by number, so that every reading of a range gives the same elements.

Knows nothing of how ranges are assigned. Invariant: range ``[start, start + length)`` is the same
elements of one pass over the dataset in every process, as far as the dataset is repeatable.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pstrain.errors import CancelledError
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import open_dataset

# Threads ask for neighbouring ranges in any order, and ranges of a lost trainer are read again.
_KEPT_BYTES = 64 << 20
# Each element counts as this many bytes at least, which bounds the number of elements as well.
_SMALLEST_BYTES = 1 << 10
# A bookmark travels with each range, so a position that contains rows is too large for one.
_BOOKMARK_BYTES: Final = 16 << 10
# Taking a bookmark may cost as much as some elements do: at most a fiftieth of the time goes there.
_BOOKMARK_EVERY_S: Final = 0.05
_BOOKMARK_SHARE: Final = 50
# Reopening the files and restarting the read-ahead does not pay below this.
_FAR_S: Final = 1.0


class Bookmark(NamedTuple):
    """The position of a pass before element ``at``, as JSON text."""

    at: int
    position: str


class RangeReader:
    """A reader of ranges of one pass, fastest in ascending order. Thread-safe.

    Reads the data once and skips elements that no range asks for. A range that starts before the
    oldest kept element makes it reopen the data, at the given bookmark or, without one, at the
    start. ``bookmark`` is the newest bookmark that it took, for other readers of the pass; None if
    the data has no positions, or only too large ones. As an iterator it yields itself without end.
    """

    def __init__(self, dataset: Any, epoch: int = 0) -> None:
        self._dataset, self._epoch = dataset, epoch
        self._lock = threading.Lock()
        self._is_closed = False
        self._elements: Iterator[Any] | None = None
        self._next = 0
        self._kept: deque[Any] = deque()
        self._kept_bytes = 0
        self._sizes, self._pace = _Sizes(), _Pace()
        self.bookmark: Bookmark | None = None
        self._bookmark_due_s = 0.0
        # Only a reader that starts at the first element fills a cache, so none is given a bookmark.
        self._takes_bookmarks = not getattr(dataset, "has_cache", False)

    def __iter__(self) -> RangeReader:
        return self

    def __next__(self) -> RangeReader:
        return self

    def read(self, start: int, length: int, bookmark: Bookmark | None = None) -> list[Any]:
        """Returns the elements of a range; fewer if the data ends before its end.

        ``bookmark``: one at or before ``start``, at which reading begins if the data has to be
        opened, or if the bookmark is far ahead of this reader. CancelledError if it is closed.
        """
        try:
            with self._lock:
                return self._read(start, length, bookmark)
        finally:
            # close() does not wait for the lock: if it was held, this thread stops the reading.
            if self._is_closed:
                self._stop_if_idle()

    def close(self) -> None:
        """Ends reading for good. Idempotent; never waits for a thread that reads.

        If another thread reads, that thread closes the data after its range.
        """
        self._is_closed = True
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def _read(self, start: int, length: int, bookmark: Bookmark | None) -> list[Any]:
        try:
            if self._elements is None or start < self._first or self._is_far_before(bookmark):
                self._open(bookmark)
            began_s, before = time.perf_counter(), self._next
            found = self._read_on(start, start + length)
            self._pace.record(self._next - before, time.perf_counter() - began_s)
            if len(found) == length and self._takes_bookmarks:
                self._take_bookmark()
            return found
        except BaseException:
            # An iterator that failed may not continue where it was.
            self._stop()
            raise

    @property
    def _first(self) -> int:
        """The number of the oldest kept element, or of the next element if none is kept."""
        return self._next - len(self._kept)

    def _is_far_before(self, bookmark: Bookmark | None) -> bool:
        return bookmark is not None and self._pace.is_far(bookmark.at - self._next)

    def _read_on(self, start: int, stop: int) -> list[Any]:
        assert self._elements is not None
        for element in itertools.islice(self._elements, max(0, stop - self._next)):
            self._kept.append(element)
            self._next += 1
            self._kept_bytes += self._sizes.of(element)
            while self._kept_bytes > _KEPT_BYTES and self._first < start:
                self._kept_bytes -= self._sizes.of(self._kept.popleft())
        first = self._first
        return list(itertools.islice(self._kept, max(0, start - first), stop - first))

    def _take_bookmark(self) -> None:
        elements: Any = self._elements
        began_s = time.perf_counter()
        if began_s < self._bookmark_due_s or not hasattr(elements, "state_dict"):
            return
        position = json.dumps(elements.state_dict())
        if len(position) <= _BOOKMARK_BYTES:
            self.bookmark = Bookmark(self._next, position)
        now_s = time.perf_counter()
        pause_s = max(_BOOKMARK_EVERY_S, _BOOKMARK_SHARE * (now_s - began_s))
        self._bookmark_due_s = now_s + pause_s

    def _open(self, bookmark: Bookmark | None) -> None:
        self._stop()
        if self._is_closed:
            raise CancelledError("these ranges cannot be read any longer: their pass is over")
        elements: Any = open_dataset(self._dataset, self._epoch, InputContext())
        self._elements = elements
        if bookmark is not None:
            elements.load_state_dict(json.loads(bookmark.position))
            self._next = bookmark.at

    def _stop(self) -> None:
        elements, self._elements = self._elements, None
        self._kept.clear()
        self._next = self._kept_bytes = 0
        self._pace = _Pace()
        if elements is not None and hasattr(elements, "close"):
            elements.close()


class _Sizes:
    """Estimates sizes of elements from the first: asking each would take longer than making it."""

    def __init__(self) -> None:
        self._row_bytes = 0.0

    def of(self, element: Any) -> int:
        rows = getattr(element, "num_rows", 0)
        if rows and not self._row_bytes:
            self._row_bytes = element.nbytes / rows
        return max(_SMALLEST_BYTES, int(rows * self._row_bytes))


class _Pace:
    """Times per element of one opened iterator; its first read gives the cost of opening."""

    def __init__(self) -> None:
        self._opening_s: float | None = None
        self._elements, self._took_s = 0, 0.0

    def record(self, elements: int, took_s: float) -> None:
        """Records that ``elements`` were read in ``took_s``."""
        if self._opening_s is None:
            self._opening_s = took_s
        else:
            self._elements, self._took_s = self._elements + elements, self._took_s + took_s

    def is_far(self, elements: int) -> bool:
        """True if skipping so many elements takes longer than reopening the data after them."""
        if self._opening_s is None or not self._elements:
            return False
        return elements * self._took_s / self._elements > max(_FAR_S, self._opening_s)


class RangeSource:
    """A dataset whose iterator of each epoch is a :class:`RangeReader`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def iterator(self, epoch: int) -> RangeReader:
        return RangeReader(self._dataset, epoch)
