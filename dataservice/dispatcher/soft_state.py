"""Soft state of a dispatcher: the liveness of clients, and the reports of workers and readers.

Nothing of it is journaled; a restarted dispatcher learns it anew. `apply` is called with every
fact after it was applied, which keeps this state in step, and logs the facts that people ask about.
Used inside the dispatcher's lock; not thread-safe by itself. Invariant: it holds nothing of workers
and readers that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.presence import Presence
from dataservice.dispatcher.quarantine import Evidence
from dataservice.dispatcher.reports import Reports
from dataservice.dispatcher.requests import LeaseWindows
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.worker_set import WorkerSet
from dataservice.vocabulary import ReaderId, WorkerId

logger = logging.getLogger(__name__)


class SoftState:
    """The soft state; any thread may read intervals and time-outs of `presence`.

    Everything else may be used only while holding the dispatcher's lock.
    """

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.reports = Reports()
        self.evidence = Evidence()
        self.workers = WorkerSet()
        self._denied: dict[ReaderId, dict[WorkerId, int]] = {}

    def restore(self, state: DispatcherState, now_s: float) -> None:
        """Takes over the clients of a replayed state; each counts as just heard of."""
        self.presence.restore(state.workers, state.iteration_of_reader, now_s)
        for worker_id in state.workers:
            self.workers.add(worker_id)

    def was_denied(self, request: LeaseWindows) -> bool:
        """True if this request, or a later one of the worker, was already answered with nothing.

        Such a copy of a request needs no windows, since the worker has gone on and its answer would
        reach nobody. Not journaled, as copies do not outlive the connections of this process.
        """
        denied = self._denied.get(request.reader_id, {}).get(request.worker_id, 0)
        return 0 < request.sequence <= denied

    def record_denial(self, request: LeaseWindows) -> None:
        """Records that the worker's request was answered with nothing."""
        denied = self._denied.setdefault(request.reader_id, {})
        denied[request.worker_id] = max(request.sequence, denied.get(request.worker_id, 0))

    def apply(self, event: ev.Event) -> None:
        """Follows a fact that was applied, and logs it if people ask about it."""
        match event:
            case ev.WorkerRegistered():
                logger.info("worker %s registered at %s", event.worker_id, event.address)
                self.workers.add(event.worker_id)
            case ev.WorkerLost():
                level, what = (
                    (logging.INFO, "has left") if event.left else (logging.WARNING, "is gone")
                )
                logger.log(level, "worker %s %s", event.worker_id, what)
                self._forget_worker(event.worker_id)
            case ev.WindowsAccused():
                self.evidence.on_accusation(event.worker_id)
            case ev.ReaderReleased() | ev.ReaderLost():
                if isinstance(event, ev.ReaderLost):
                    logger.warning("reader %s is fenced: %s", event.reader_id, event.reason)
                self._forget_reader(event.reader_id)
            case ev.JobDeleted():
                logger.info("job %s deleted", event.job_id)
            case ev.DatasetDeleted():
                logger.info("dataset %s deleted", event.dataset_id)

    def _forget_worker(self, worker_id: WorkerId) -> None:
        self.presence.drop_worker(worker_id)
        self.evidence.forget(worker_id)
        self.workers.drop(worker_id)
        self.reports.drop_worker(worker_id)
        for denied in self._denied.values():
            denied.pop(worker_id, None)

    def _forget_reader(self, reader_id: ReaderId) -> None:
        self.presence.drop_reader(reader_id)
        self.reports.drop_reader(reader_id)
        self._denied.pop(reader_id, None)

    def forget_readers(self, reader_ids: Sequence[ReaderId]) -> None:
        """Forgets readers, including those of a deleted job, whose loss is no fact of its own."""
        for reader_id in reader_ids:
            self._forget_reader(reader_id)
