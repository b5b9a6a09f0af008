"""Totals over the iterators of a dataset: rows, waiting times and times per operator.

Invariant: the times of a pass are counted exactly once, while it runs and after it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Final

from dataservice.dataset.timing import OperatorStats, OperatorTimes, WorkLog

# If callers wait for less than this share of the time, a faster pipeline would hardly help them.
_BOUND_SHARE: Final = 0.5
_MIN_BATCHES: Final = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """What the iterators of a dataset have yielded, and where the time was spent.

    `wait_s` is the time that callers waited for a batch, `compute_s` the time between two batches.
    `operators` are in the order of the plan, each with the time that it took without its inputs.
    `worker_operators` are those of the part that data workers run, with the time of all workers
    together.
    """

    iterators: int = 0
    batches: int = 0
    rows: int = 0
    wait_s: float = 0.0
    compute_s: float = 0.0
    operators: tuple[OperatorStats, ...] = ()
    worker_operators: tuple[OperatorStats, ...] = ()

    @property
    def wait_share(self) -> float:
        """The share of the time that callers waited, in [0, 1]."""
        total_s = self.wait_s + self.compute_s
        return self.wait_s / total_s if total_s > 0 else 0.0

    @property
    def verdict(self) -> str:
        """The word "input-bound" if callers mostly wait for data, else "compute-bound".

        Before the second batch it is "unknown".
        """
        if self.batches < _MIN_BATCHES:
            return "unknown"
        return "input-bound" if self.wait_share >= _BOUND_SHARE else "compute-bound"

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows in {self.batches:,} batches: {self.verdict}, "
            f"{self.wait_share:.0%} of the time waiting for data"
        ]
        lines += _table(self.operators)
        if self.worker_operators:
            lines += ["on data workers:", *_table(self.worker_operators)]
        return "\n".join(lines)


def _table(operators: Sequence[OperatorStats]) -> list[str]:
    total_s = sum(operator.time_s for operator in operators) or 1.0
    return [
        f"  {operator.name:<24} {operator.time_s:9.3f} s {operator.time_s / total_s:4.0%} "
        f"{operator.rows:>14,} rows"
        for operator in operators
    ]


class StatsCounter:
    """Adds up what several iterators report. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Plain numbers rather than a DatasetStats, since they change with every batch.
        self._iterators = self._batches = self._rows = 0
        self._wait_s = self._compute_s = 0.0
        self._retired = DatasetStats()
        self._running: list[tuple[OperatorTimes, WorkLog]] = []

    def add(
        self,
        *,
        iterators: int = 0,
        batches: int = 0,
        rows: int = 0,
        wait_s: float = 0,
        compute_s: float = 0,
    ) -> None:
        """Adds to the totals."""
        with self._lock:
            self._iterators += iterators
            self._batches += batches
            self._rows += rows
            self._wait_s += wait_s
            self._compute_s += compute_s

    def watch(self, times: OperatorTimes, workers: WorkLog) -> None:
        """Includes the operators of a pass that begins, and those that data workers run for it."""
        with self._lock:
            self._running.append((times, workers))

    def retire(self, times: OperatorTimes, workers: WorkLog) -> None:
        """Adds the totals of a pass that is over, and forgets the pass."""
        with self._lock:
            if (times, workers) in self._running:
                self._running.remove((times, workers))
                self._retired = _with_operators(self._retired, times, workers)

    def total(self) -> DatasetStats:
        """Returns the totals so far."""
        with self._lock:
            total = dataclasses.replace(
                self._retired,
                iterators=self._iterators,
                batches=self._batches,
                rows=self._rows,
                wait_s=self._wait_s,
                compute_s=self._compute_s,
            )
            for times, workers in self._running:
                total = _with_operators(total, times, workers)
            return total


def _with_operators(total: DatasetStats, times: OperatorTimes, workers: WorkLog) -> DatasetStats:
    return dataclasses.replace(
        total,
        operators=_added(total.operators, times.totals()),
        worker_operators=_added(total.worker_operators, workers.totals()),
    )


def _added(
    old: tuple[OperatorStats, ...], new: Sequence[OperatorStats]
) -> tuple[OperatorStats, ...]:
    """Returns the sums per operator; if the operators differ, the list that has more of them."""
    if [stats.name for stats in old] == [stats.name for stats in new]:
        return tuple(before + after for before, after in zip(old, new, strict=True))
    return tuple(new) if len(new) >= len(old) else old
