"""The latest reports of workers and readers, for the status and for scaling.

Reports are not facts: no decision depends on them and none is journaled, so a restarted dispatcher
collects them anew. Pure; not thread-safe. Invariant: reports are kept only of workers and readers
that are there, counts of what was left out only of iterations that exist.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dataservice.dispatcher.autoscale import Autoscale, Production
from dataservice.omissions import NOTHING, Omitted
from dataservice.vocabulary import IterationId, ReaderId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker reported in its last heartbeat."""

    rows_sent: int = 0
    rate_rows_per_s: float = 0.0
    buffered_bytes: int = 0
    production: tuple[Production, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderReport:
    """What a reader reported in its last sync."""

    rows_consumed: int = 0
    wait_share: float = 0.0
    trainer_id: str = ""
    elements_missed: int = 0
    omitted: Omitted = NOTHING


class Reports:
    """The latest report of each worker and reader, and the rates that follow from all of them."""

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerReport] = {}
        self.readers: dict[ReaderId, ReaderReport] = {}
        self.omitted: dict[IterationId, dict[ReaderId, Omitted]] = {}
        self.autoscale = Autoscale()

    def record_worker(self, worker_id: WorkerId, report: WorkerReport, now_s: float) -> None:
        """Records the report in a worker's heartbeat."""
        self.workers[worker_id] = report
        self.autoscale.record_worker(worker_id, report.production, now_s)

    def record_reader(
        self, iteration_id: IterationId, reader_id: ReaderId, report: ReaderReport, now_s: float
    ) -> None:
        """Records the report in a reader's sync."""
        self.readers[reader_id] = report
        self.autoscale.record_reader(
            iteration_id,
            reader_id,
            report.rows_consumed,
            report.wait_share,
            now_s,
            report.trainer_id,
        )
        self.record_omitted(iteration_id, reader_id, report.omitted)

    def record_omitted(
        self, iteration_id: IterationId, reader_id: ReaderId, omitted: Omitted
    ) -> None:
        """Records what a reader left out; kept after it has gone, since people ask at the end."""
        if omitted:
            self.omitted.setdefault(iteration_id, {})[reader_id] = omitted

    def drop_worker(self, worker_id: WorkerId) -> None:
        """Forgets a worker that is gone."""
        self.workers.pop(worker_id, None)
        self.autoscale.drop_worker(worker_id)

    def drop_reader(self, reader_id: ReaderId) -> None:
        """Forgets a reader that is gone."""
        self.readers.pop(reader_id, None)
        self.autoscale.drop_reader(reader_id)

    def keep_iterations(self, iterations: Collection[IterationId]) -> None:
        """Forgets iterations that are gone."""
        for iteration_id in [known for known in self.omitted if known not in iterations]:
            del self.omitted[iteration_id]
        self.autoscale.keep_iterations(iterations)
