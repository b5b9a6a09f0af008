"""One pass over data that every trainer can read by itself, dealt to them a range at a time.

A closure names its range, so one that runs again, on whatever trainer, trains on the same elements;
who is there gets ranges, who is not gets none. Knows nothing of what is done with elements.
Invariant: a position names every element of the pass that is not done once: those that were dealt,
and all from the next one on; which dataset they are elements of; and where to begin reading them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from pstrain.coordinator.per_worker import PerWorkerIterator, Trainers
from pstrain.element_ranges import Bookmark, RangeSource
from pstrain.errors import InvalidArgumentError
from pstrain.execution.bookmarks import Bookmarks

_OF_AN_EPOCH = frozenset(("epoch", "is_known"))
"""What a position says that is the beginning of an epoch."""


class Range(NamedTuple):
    """Elements ``[start, start + length)``."""

    start: int
    length: int


class Outcome(Protocol):
    """Of the closure that a range was given to."""

    @property
    def has_value(self) -> bool:
        """Whether it has ended well."""


class DealtDataset:
    """A dataset of which each ``iter`` is the next epoch."""

    def __init__(self, data: Any, trainers: Trainers, first_epoch: int = 0) -> None:
        self._data, self._trainers = data, trainers
        self._next_epoch = first_epoch

    def __iter__(self) -> DealtPass:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return DealtPass(self._data, epoch, self._trainers, self._note_epoch)

    def _note_epoch(self, epoch: int) -> None:
        """A pass was moved to an epoch: the next one follows it."""
        self._next_epoch = epoch + 1


class DealtPass:
    """One epoch. Thread-safe: another thread may save how far it is.

    ``readers``: what the closure of a range is given to read it with, on each trainer.
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
        """Whether there are ranges that were dealt before the position that this goes on from."""
        return bool(self._again)

    def deal(self, most: int) -> Range:
        """The next range, of at most so many elements; those that were returned come first."""
        with self._lock:
            dealt = self._first_returned(most)
            if dealt is None:
                dealt, self._next = Range(self._next, most), self._next + most
            self._out[dealt] = None
            return dealt

    def note_out(self, dealt: Range, outcome: Outcome) -> None:
        """A closure has a range, and says what becomes of it."""
        with self._lock:
            self._out[dealt] = outcome

    def note_done(self, dealt: Range) -> None:
        """The report on a range was heard."""
        with self._lock:
            del self._out[dealt]
            # To look which are of use costs more than a few that are not.
            if len(self._bookmarks) > 2 * (len(self._out) + len(self._again) + 1):
                self._bookmarks.keep_for(self._starts([*self._out, *self._again]))

    def note_bookmark(self, report: Mapping[str, Any]) -> None:
        """How far the reader was that a report tells of."""
        if report["bookmark"] is not None:
            with self._lock:
                self._bookmarks.add(report["bookmark"])

    def bookmark_before(self, dealt: Range) -> Bookmark | None:
        """Where who reads a range may begin; None: at the start."""
        with self._lock:
            return self._bookmarks.before(dealt.start)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. While no closure runs: what has ended then is done."""
        with self._lock:
            undone = [dealt for dealt, outcome in self._out.items() if not _is_done(outcome)]
            again = sorted([*undone, *self._again])
            nearest = {self._bookmarks.before(start) for start in self._starts(again)}
            return {
                "epoch": self.epoch,
                "data": self._data.identity(),
                "next": self._next,
                "again": [list(dealt) for dealt in again],
                "bookmarks": sorted(list(each) for each in nearest if each is not None),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """InvalidArgumentError for a position of another dataset, or of another kind of reading."""
        epoch = state.get("epoch")
        if not isinstance(epoch, int) or epoch < 0:
            raise InvalidArgumentError(f"not a position in data: {dict(state)!r}")
        if "next" not in state and not state.keys() <= _OF_AN_EPOCH:
            raise InvalidArgumentError(
                "the position was saved while a data service, one process or another version "
                f"read the data ({', '.join(state)}), so it is no position in data that is dealt "
                "out to trainers: give fit the data in the same form as before, or "
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
        """The pass begins again."""
        self.readers.close()
        self._begin(self.epoch)

    def close(self) -> None:
        """Trainers stop reading."""
        self.readers.close()

    def _begin(self, epoch: int, first: int = 0, again: Any = (), bookmarks: Any = ()) -> None:
        with self._lock:
            self.epoch = epoch
            self.readers = PerWorkerIterator(
                RangeSource(self._data), epoch, self._trainers, self._moved
            )
            self._next = first
            self._again = deque(Range(*each) for each in again)
            self._out: dict[Range, Outcome | None] = {}
            self._bookmarks = Bookmarks(Bookmark(*each) for each in bookmarks)

    def _starts(self, undone: Iterable[Range]) -> list[int]:
        """Where reading may begin, which is left to do: these and what was not dealt yet."""
        return [*(dealt.start for dealt in undone), self._next]

    def _first_returned(self, most: int) -> Range | None:
        if not self._again:
            return None
        start, length = self._again.popleft()
        if length > most:
            self._again.appendleft(Range(start + most, length - most))
        return Range(start, min(length, most))


def in_order(ended: Iterable[tuple[Range, Any]]) -> Iterator[Any]:
    """What came of ranges of a whole pass, in their order, as soon as those before are there."""
    early: dict[int, tuple[Range, Any]] = {}
    first = 0
    for dealt, outcome in ended:
        early[dealt.start] = dealt, outcome
        while first in early:
            found, of_it = early.pop(first)
            first += found.length
            yield of_it


def _is_done(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.has_value
