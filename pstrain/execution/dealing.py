"""One pass over data that every trainer can read by itself, dealt to them a range at a time.

A closure names its range, so if it runs again, on any trainer, it trains on the same elements;
trainers get ranges only while they are there. Knows nothing of what is done with elements.
Invariant: a position names, once each, all elements of the pass that are not done (those dealt, and
all from the next one on), the dataset that they belong to, and where reading them may begin.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pstrain.coordinator.per_worker import PerWorkerIterator, Trainers
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import InvalidArgumentError
from pstrain.execution.bookmarks import Bookmarks
from pstrain.execution.element_ranges import Bookmark, RangeSource

_OF_AN_EPOCH = frozenset(("epoch", "is_known"))
"""The keys of a position at the beginning of an epoch."""


class Range(NamedTuple):
    """Elements ``[start, start + length)``."""

    start: int
    length: int


class DealtDataset:
    """A dataset whose ``iter`` gives the next epoch each time."""

    def __init__(self, data: Any, trainers: Trainers, first_epoch: int = 0) -> None:
        self._data, self._trainers = data, trainers
        self._next_epoch = first_epoch

    def __iter__(self) -> DealtPass:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return DealtPass(self._data, epoch, self._trainers, self._note_epoch)

    def _note_epoch(self, epoch: int) -> None:
        """Notes that a pass was moved to ``epoch``: the next pass has the one after."""
        self._next_epoch = epoch + 1


class DealtPass:
    """One pass over one epoch. Thread-safe: another thread may save its position.

    ``readers``: the per-worker iterator with which closures read their ranges on each trainer.
    """

    def __init__(
        self, data: Any, epoch: int, trainers: Trainers, moved: Callable[[int], None]
    ) -> None:
        self._data, self._trainers, self._moved = data, trainers, moved
        self._lock = threading.Lock()
        self._next = 0
        self._begin(epoch)

    def __iter__(self) -> DealtPass:
        return self

    def __next__(self) -> Any:
        return next(self.readers)  # raises: the data are on the trainers

    @property
    def has_returned(self) -> bool:
        """True if ranges are left that had been dealt before a loaded position was saved."""
        return bool(self._again)

    def deal(self, most: int) -> Range:
        """Returns the next range, of at most ``most`` elements; returned ranges come first."""
        with self._lock:
            dealt = self._first_returned(most)
            if dealt is None:
                dealt, self._next = Range(self._next, most), self._next + most
            self._scheduled[dealt] = None
            return dealt

    def note_scheduled(self, dealt: Range, outcome: RemoteValue) -> None:
        """Notes the closure's value that tells whether a range is done."""
        with self._lock:
            self._scheduled[dealt] = outcome

    def note_done(self, dealt: Range, count: int | None = None) -> None:
        """Notes that the report on a range, or on its first ``count`` elements, has arrived.

        The others are dealt again. Until then they are in no position, and then they are no part of
        an order, so only functions of passes that are neither saved nor in order may leave any.
        """
        with self._lock:
            del self._scheduled[dealt]
            if count is not None and count < dealt.length:
                self._again.append(Range(dealt.start + count, dealt.length - count))
            # Cleaned up only now and then: finding useless bookmarks costs more than keeping some.
            if len(self._bookmarks) > 2 * (len(self._scheduled) + len(self._again) + 1):
                self._bookmarks.keep_for(self._starts([*self._scheduled, *self._again]))

    def note_bookmark(self, report: Mapping[str, Any]) -> None:
        """Notes the bookmark in a report: how far its trainer's reader was."""
        if report["bookmark"] is not None:
            with self._lock:
                self._bookmarks.add(report["bookmark"])

    def bookmark_before(self, dealt: Range) -> Bookmark | None:
        """Returns the bookmark at which reading a range may begin; None for the start."""
        with self._lock:
            return self._bookmarks.before(dealt.start)

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-able position; only while no closure runs, so all that ended is done."""
        with self._lock:
            undone = [dealt for dealt, outcome in self._scheduled.items() if not _is_done(outcome)]
            again = sorted([*undone, *self._again])
            return {
                "epoch": self.epoch,
                "data": self._data.identity(),
                "next": self._next,
                "again": [list(dealt) for dealt in again],
                "bookmarks": [list(each) for each in self._bookmarks.nearest(self._starts(again))],
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a position; InvalidArgumentError if it is of other data or kind."""
        epoch = state.get("epoch")
        if not isinstance(epoch, int) or epoch < 0:
            raise InvalidArgumentError(f"not a position in data: {dict(state)!r}")
        if "next" not in state and not state.keys() <= _OF_AN_EPOCH:
            raise InvalidArgumentError(
                "the position was saved while a data service, one process or another version "
                f"read the data ({', '.join(state)}), so it is not a position in data that is "
                "dealt out to trainers: give fit the data in the same form as before, or "
                "callbacks.Checkpoint(..., resume=False)"
            )
        if "next" in state:
            self._data = self._data.identified(state.get("data", {}))
        self.readers.close()
        self._begin(
            epoch, int(state.get("next", 0)), state.get("again", ()), state.get("bookmarks", ())
        )
        self._moved(epoch)

    def rewind(self) -> None:
        """Restarts the pass."""
        self.readers.close()
        self._begin(self.epoch)

    def close(self) -> None:
        """Has trainers stop reading."""
        self.readers.close()

    def _begin(self, epoch: int, first: int = 0, again: Any = (), bookmarks: Any = ()) -> None:
        with self._lock:
            self.epoch = epoch
            self.readers = PerWorkerIterator(
                RangeSource(self._data), epoch, self._trainers, self._moved
            )
            self._next = first
            self._again = deque(Range(*each) for each in again)
            self._scheduled: dict[Range, RemoteValue | None] = {}
            self._bookmarks = Bookmarks(Bookmark(*each) for each in bookmarks)

    def _starts(self, undone: Iterable[Range]) -> list[int]:
        """Returns where remaining reads may begin: at ``undone``, and at what was not dealt yet."""
        return [*(dealt.start for dealt in undone), self._next]

    def _first_returned(self, most: int) -> Range | None:
        if not self._again:
            return None
        start, length = self._again.popleft()
        if length > most:
            self._again.appendleft(Range(start + most, length - most))
        return Range(start, min(length, most))


def in_order(ended: Iterable[tuple[Range, Any]]) -> Iterator[Any]:
    """Yields the outcomes of a pass's ranges in order, each as soon as all before it are there."""
    early: dict[int, tuple[Range, Any]] = {}
    first = 0
    for dealt, outcome in ended:
        early[dealt.start] = dealt, outcome
        while first in early:
            found, of_it = early.pop(first)
            first += found.length
            yield of_it


def _is_done(outcome: RemoteValue | None) -> bool:
    return outcome is not None and outcome.has_value
