"""Where the time of a pass goes, per operator, and the log that adds up the times of many runs.

Knows plans only as a list of names, and nothing of streams. Invariant: what a log gives away it
gives once.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStats:
    """What one operator has yielded, and the time that it took itself.

    For a prefetch it is the time that its reader waited.
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
    """What one operator has yielded and taken so far; changed by the thread that runs it."""

    __slots__ = ("batches", "rows", "time_s")

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.time_s = 0.0


class OperatorTimes:
    """Times of the operators of one pass. Each operator is run by one thread at a time."""

    def __init__(self, names: Sequence[str], keys: Sequence[int]) -> None:
        self._names = list(names)
        self._entries = {key: TimeEntry() for key in keys}
        # How long the streams below took that the running `next` of a thread has called.
        self.local = threading.local()

    def entry(self, key: int) -> TimeEntry | None:
        """Of an operator; None where `key` is none of the plan's."""
        return self._entries.get(key)

    def note(self, key: int, rows: int, time_s: float) -> None:
        """Adds a batch of an operator that no stream stands for."""
        entry = self._entries[key]
        entry.batches += 1
        entry.rows += rows
        entry.time_s += time_s

    def totals(self) -> list[OperatorStats]:
        """Per operator, inputs before the operators that read them."""
        return [
            OperatorStats(name=name, batches=e.batches, rows=e.rows, time_s=e.time_s)
            for name, e in zip(self._names, self._entries.values(), strict=True)
        ]


# Which part of a plan, and which of its operators, in order.
_Place: TypeAlias = tuple[int, int]


class WorkLog:
    """Times of the same operators in many runs, also in other processes. Thread safe.

    A process that runs parts of a plan watches them and takes what is new; one that reads adds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[_Place, OperatorStats] = {}
        self._running: dict[OperatorTimes, tuple[int, list[OperatorStats]]] = {}

    def watch(self, part: int, times: OperatorTimes) -> None:
        """Counts the operators of a run of that part, which begins."""
        with self._lock:
            self._running[times] = part, times.totals()

    def retire(self, times: OperatorTimes) -> None:
        """Keeps what a run took that is over, and forgets it."""
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
        """What is new since the last call, as JSON values for `add`."""
        with self._lock:
            for times in self._running:
                self._gather(times)
            taken, self._sums = self._sums, {}
        return [[*place, s.name, s.batches, s.rows, s.time_s] for place, s in taken.items()]

    def add(self, news: Sequence[Sequence[Any]]) -> None:
        """Adds what another log gave away."""
        with self._lock:
            for part, index, name, batches, rows, time_s in news:
                more = OperatorStats(
                    name=str(name), batches=int(batches), rows=int(rows), time_s=float(time_s)
                )
                self._add((int(part), int(index)), more)

    def totals(self) -> list[OperatorStats]:
        """Per operator, in the order of the plan."""
        with self._lock:
            return [self._sums[place] for place in sorted(self._sums)]
