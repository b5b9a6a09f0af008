"""One pass over data that every trainer can read by itself, dealt to them a range at a time.

A closure names its range, so one that runs again, on whatever trainer, trains on the same elements;
who is there gets ranges, who is not gets none. Knows nothing of what is done with elements.
Invariant: a position names every element of the pass once: those that were dealt and are not done,
and all from the next one on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pstrain.coordinator.per_worker import PerWorkerDataset, PerWorkerIterator


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
    """Each ``iter`` is the next epoch. ``readers``: of ``RangeReader``s, one on each trainer."""

    def __init__(self, readers: PerWorkerDataset) -> None:
        self._readers = readers

    def __iter__(self) -> DealtPass:
        return DealtPass(iter(self._readers))


class DealtPass:
    """One epoch. Not thread-safe, except that its position may be asked for by any thread.

    ``readers``: what the closure of a range is given to read it with.
    """

    def __init__(self, readers: PerWorkerIterator) -> None:
        self.readers = readers
        self._next = 0
        self._again: deque[Range] = deque()
        self._out: dict[Range, Outcome] = {}

    def __iter__(self) -> DealtPass:
        return self

    def __next__(self) -> Any:
        return next(self.readers)  # raises: the data are on the trainers

    @property
    def epoch(self) -> int:
        return self.readers.epoch

    @property
    def has_returned(self) -> bool:
        """Whether there are ranges that were dealt before the position that this goes on from."""
        return bool(self._again)

    def deal(self, count: int) -> Range:
        """The next range, of at most so many elements; those that were returned come first."""
        if not self._again:
            dealt, self._next = Range(self._next, count), self._next + count
            return dealt
        start, left = self._again.popleft()
        if left > count:
            self._again.appendleft(Range(start + count, left - count))
        return Range(start, min(left, count))

    def note_out(self, dealt: Range, outcome: Outcome) -> None:
        """A closure has a range, and says what becomes of it."""
        self._out[dealt] = outcome

    def note_done(self, dealt: Range) -> None:
        """The report on a range was heard."""
        del self._out[dealt]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able. While no closure runs: what has ended then is done."""
        undone = [dealt for dealt, outcome in self._out.items() if not outcome.has_value]
        again = sorted([*undone, *self._again])
        return {"epoch": self.epoch, "next": self._next, "again": [list(each) for each in again]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From a position without ranges, as of another kind of data, the pass begins."""
        self.readers.load_state_dict({"epoch": state.get("epoch")})
        self._next = int(state.get("next", 0))
        self._again = deque(Range(*each) for each in state.get("again", ()))
        self._out = {}

    def rewind(self) -> None:
        """The pass begins again."""
        self.readers.rewind()
        self._next, self._again, self._out = 0, deque(), {}

    def close(self) -> None:
        """Trainers stop reading."""
        self.readers.close()
