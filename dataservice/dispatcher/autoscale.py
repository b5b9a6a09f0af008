"""Estimates how many workers would be enough, as tf.data service's auto-scaler does.

Pure; the caller passes the time. A reader that waits a share w of its time and gets r rows a second
would take r / (1 - w). A worker that is busy a share b of its time and gives r would give r / b.
The estimate of an iteration is the sum over its readers divided by the mean over its workers; the
largest over all iterations counts, within bounds. Rates that differ from the mean by more than a
standard deviation are replaced by the median. Invariant: an estimate is from 1 to the bound, or
there is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dataservice.vocabulary import IterationId, ReaderId, WorkerId

# A rate is averaged over about this time, so that a slow step or a checkpoint moves it little.
HORIZON_S: Final = 10.0
# Reports that cover less time than this are too few to use.
_LEARNING_S: Final = 1.0
# Lower bound of divisors, for a reader that always waits and a worker that is never busy.
_LEAST_SHARE: Final = 0.01
_OUTLIER_SIGMAS: Final = 1.0
MAX_FACTOR: Final = 4
MAX_MORE: Final = 500
MAX_WORKERS: Final = 100_000


class Production(NamedTuple):
    """A worker's recent production for an iteration.

    `busy_share` is the share of its time not spent waiting for readers to take what is ready.
    """

    iteration_id: IterationId
    rows_per_s: float
    busy_share: float


class Estimate(NamedTuple):
    """`enough` workers instead of the present `now`; mean shares of time, and a reason in words."""

    now: int
    enough: int
    wait_share: float
    busy_share: float
    reason: str


@dataclass(slots=True)
class _Mean:
    """Exponentially weighted means, over time, of rows per second and of a share."""

    since_s: float
    last_s: float
    rows_per_s: float = 0.0
    share: float = 0.0
    weight: float = 0.0
    rows_total: int = 0
    trainer: str = ""

    def add(self, rows_per_s: float, share: float, now_s: float) -> None:
        keep = math.exp(-(now_s - self.last_s) / HORIZON_S)
        # Normalised by the total weight so far, or the first reports would count too little.
        weight = self.weight * keep + (1.0 - keep)
        if weight > 0.0:
            new = (1.0 - keep) / weight
            self.rows_per_s += new * (rows_per_s - self.rows_per_s)
            self.share += new * (share - self.share)
        self.weight = weight
        self.last_s = now_s

    def is_known(self) -> bool:
        return self.last_s - self.since_s >= _LEARNING_S


@dataclass(slots=True)
class _Rates:
    readers: dict[ReaderId, _Mean] = field(default_factory=dict)
    workers: dict[WorkerId, _Mean] = field(default_factory=dict)


class Autoscale:
    """Rates of all readers and workers, by iteration. Not thread-safe."""

    def __init__(self) -> None:
        self._rates: dict[IterationId, _Rates] = {}
        self._iteration_of_reader: dict[ReaderId, IterationId] = {}
        self._iterations_of_worker: dict[WorkerId, set[IterationId]] = {}

    def record_reader(
        self,
        iteration_id: IterationId,
        reader_id: ReaderId,
        rows_total: int,
        wait_share: float,
        now_s: float,
        trainer: str = "",
    ) -> None:
        """Records a reader's report: rows taken so far, share of time waited since the last one."""
        self._iteration_of_reader[reader_id] = iteration_id
        readers = self._rates.setdefault(iteration_id, _Rates()).readers
        mean = readers.get(reader_id)
        if mean is None:
            readers[reader_id] = _Mean(now_s, now_s, rows_total=rows_total, trainer=trainer)
        elif now_s > mean.last_s:
            rows_per_s = max(0, rows_total - mean.rows_total) / (now_s - mean.last_s)
            mean.add(rows_per_s, wait_share, now_s)
            mean.rows_total = rows_total

    def record_worker(
        self, worker_id: WorkerId, production: Iterable[Production], now_s: float
    ) -> None:
        """Records what a worker made since its last report; drops it from all other iterations."""
        reported = {part.iteration_id: part for part in production}
        self._forget(worker_id, self._iterations_of_worker.get(worker_id, set()) - reported.keys())
        self._iterations_of_worker[worker_id] = set(reported)
        for iteration_id, part in reported.items():
            workers = self._rates.setdefault(iteration_id, _Rates()).workers
            if worker_id not in workers:
                workers[worker_id] = _Mean(now_s, now_s)
            elif now_s > workers[worker_id].last_s:
                workers[worker_id].add(part.rows_per_s, part.busy_share, now_s)

    def drop_reader(self, reader_id: ReaderId) -> None:
        """Forgets a reader that is gone."""
        rates = self._rates.get(self._iteration_of_reader.pop(reader_id, IterationId("")))
        if rates is not None:
            rates.readers.pop(reader_id, None)

    def drop_worker(self, worker_id: WorkerId) -> None:
        """Forgets a worker that is gone."""
        self._forget(worker_id, self._iterations_of_worker.pop(worker_id, set()))

    def _forget(self, worker_id: WorkerId, iterations: Iterable[IterationId]) -> None:
        for iteration_id in iterations:
            rates = self._rates.get(iteration_id)
            if rates is not None:
                rates.workers.pop(worker_id, None)

    def keep_iterations(self, iterations: Collection[IterationId]) -> None:
        """Forgets iterations that are gone."""
        for iteration_id in [known for known in self._rates if known not in iterations]:
            del self._rates[iteration_id]

    def of_iteration(self, iteration_id: IterationId, workers_now: int) -> Estimate | None:
        """Returns the estimate for an iteration; None while too little is known."""
        rates = self._rates.get(iteration_id, _Rates())
        readers = [mean for mean in rates.readers.values() if mean.is_known()]
        workers = [mean for mean in rates.workers.values() if mean.is_known()]
        demand = _demand(readers)
        given = [mean.rows_per_s / max(mean.share, _LEAST_SHARE) for mean in workers]
        capacity = statistics.fmean(without_outliers(given)) if given else 0.0
        if capacity <= 0.0 or demand <= 0.0:
            return None
        enough = bounded(math.ceil(demand / capacity), workers_now)
        wait = statistics.fmean(mean.share for mean in readers)
        busy = statistics.fmean(mean.share for mean in workers)
        return Estimate(workers_now, enough, wait, busy, _reason(workers_now, enough, wait, busy))

    def overall(self, workers_now: int) -> Estimate | None:
        """Returns the estimate of the iteration that needs most; None while none is known."""
        estimates = (self.of_iteration(i, workers_now) for i in self._rates)
        known = [estimate for estimate in estimates if estimate is not None]
        return max(known, key=lambda estimate: estimate.enough, default=None)


def _demand(readers: Iterable[_Mean]) -> float:
    """Returns the rows per second that readers would take if they never waited.

    Trainers that share a cache take the same rows, so only the fastest trainer counts.
    """
    by_trainer: dict[str, list[float]] = {}
    for mean in readers:
        rate = mean.rows_per_s / max(1.0 - mean.share, _LEAST_SHARE)
        by_trainer.setdefault(mean.trainer, []).append(rate)
    return max((sum(without_outliers(rates)) for rates in by_trainer.values()), default=0.0)


def without_outliers(rates: Collection[float]) -> list[float]:
    """Returns the rates, those beyond a standard deviation from the mean replaced by the median."""
    median, mean = statistics.median(rates), statistics.fmean(rates)
    width = _OUTLIER_SIGMAS * statistics.pstdev(rates)
    # A little more than the deviation, as both of two rates are exactly one deviation away.
    return [rate if abs(rate - mean) <= width * 1.000_001 else median for rate in rates]


def bounded(enough: int, workers_now: int) -> int:
    """Limits an estimate to four times the present workers, 500 more than these, and 100,000."""
    most = min(MAX_FACTOR * workers_now, workers_now + MAX_MORE, MAX_WORKERS)
    return max(1, min(enough, most))


def _reason(now: int, enough: int, wait: float, busy: float) -> str:
    shares = f"readers wait {wait:.0%} of their time, workers are busy {busy:.0%} of theirs"
    if enough > now:
        return f"input-bound: {shares}"
    return f"compute-bound: {shares}" if enough < now else f"balanced: {shares}"


class EstimateDebounce:
    """Detects when an estimate has differed from the last reported one for `stay_s`."""

    def __init__(self, stay_s: float) -> None:
        self._stay_s = stay_s
        self._reported: int | None = None
        self._differs_since_s: float | None = None

    def is_due(self, estimate: Estimate, now_s: float) -> bool:
        """True if this estimate has to be reported now.

        Before the first report, estimates are compared with the number of present workers.
        """
        reported = estimate.now if self._reported is None else self._reported
        if estimate.enough == reported:
            self._differs_since_s = None
            return False
        if self._differs_since_s is None:
            self._differs_since_s = now_s
        if now_s - self._differs_since_s < self._stay_s:
            return False
        self._reported = estimate.enough
        self._differs_since_s = None
        return True
