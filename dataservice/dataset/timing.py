"""The time that each operator takes in a pass, and a log that adds up the times of many runs.

Knows plans only as lists of names, and nothing of streams. Invariant: a log reports each amount of
time once.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStats:
    """What one operator has yielded, and the time that it took without its inputs.

    For a prefetch, `time_s` is the time that its reader waited.
    """

    name: str
    batches: int = 0
    rows: int = 0
    time_s: float = 0.0

    def __add__(self, other: OperatorStats) -> OperatorStats:
        return OperatorStats(
            name=self.name,
            batches=self.batches + other.batches,
            rows=self.rows + other.rows,
            time_s=self.time_s + other.time_s,
        )

    def __sub__(self, other: OperatorStats) -> OperatorStats:
        return OperatorStats(
            name=self.name,
            batches=self.batches - other.batches,
            rows=self.rows - other.rows,
            time_s=self.time_s - other.time_s,
        )


class TimeEntry:
    """The running counts and time of one operator; only the thread that runs it writes to it."""

    __slots__ = ("batches", "rows", "time_s")

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.time_s = 0.0


class OperatorTimes:
    """The times of the operators of one pass. Each operator is run by one thread at a time."""

    def __init__(self, names: Sequence[str], keys: Sequence[int]) -> None:
        self._names = list(names)
        self._entries = {key: TimeEntry() for key in keys}
        # Per thread: the time that the streams below have taken within the running `next`.
        self.local = threading.local()

    def entry(self, key: int) -> TimeEntry | None:
        """Returns the entry of an operator; None if the plan has no operator of that key."""
        return self._entries.get(key)

    def add_batch(self, key: int, rows: int, time_s: float) -> None:
        """Adds a batch of an operator that runs without a stream of its own."""
        entry = self._entries[key]
        entry.batches += 1
        entry.rows += rows
        entry.time_s += time_s

    def totals(self) -> list[OperatorStats]:
        """Returns the totals per operator, inputs before the operators that read them."""
        return [
            OperatorStats(name=name, batches=e.batches, rows=e.rows, time_s=e.time_s)
            for name, e in zip(self._names, self._entries.values(), strict=True)
        ]


# The number of a part of a plan, and of an operator within it.
_Place: TypeAlias = tuple[int, int]


class WorkLog:
    """The times of the same operators in many runs, also in other processes. Thread-safe.

    A process that runs parts of a plan calls `watch` for each run, and `take` to send what is new;
    the process that reads the rows passes it to `add`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[_Place, OperatorStats] = {}
        self._running: dict[OperatorTimes, tuple[int, list[OperatorStats]]] = {}

    def watch(self, part: int, times: OperatorTimes) -> None:
        """Begins to count the operators of a run of that part."""
        with self._lock:
            self._running[times] = part, times.totals()

    def retire(self, times: OperatorTimes) -> None:
        """Adds the times of a run that is over, and forgets the run."""
        with self._lock:
            self._gather(times)
            del self._running[times]

    def _gather(self, times: OperatorTimes) -> None:
        part, before = self._running[times]
        now = times.totals()
        self._running[times] = part, now
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            if new != old:
                self._add((part, index), new - old)

    def _add(self, place: _Place, more: OperatorStats) -> None:
        known = self._sums.get(place)
        self._sums[place] = more if known is None else known + more

    def take(self) -> list[list[Any]]:
        """Returns the times since the last call, as JSON values for `add`."""
        with self._lock:
            for times in self._running:
                self._gather(times)
            taken, self._sums = self._sums, {}
        return [[*place, s.name, s.batches, s.rows, s.time_s] for place, s in taken.items()]

    def add(self, times: Sequence[Sequence[Any]]) -> None:
        """Adds times that `take` of another log returned."""
        with self._lock:
            for part, index, name, batches, rows, time_s in times:
                more = OperatorStats(
                    name=str(name), batches=int(batches), rows=int(rows), time_s=float(time_s)
                )
                self._add((int(part), int(index)), more)

    def totals(self) -> list[OperatorStats]:
        """Returns the totals per operator, in the order of the plan."""
        with self._lock:
            return [self._sums[place] for place in sorted(self._sums)]
