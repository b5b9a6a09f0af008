"""The dispatcher's answers about snapshots: the lock and the journal around `saving`.

A part of the service that works on its state store; decides nothing itself. Invariants: no answer
leaves before its facts are durable; splits are planned outside the lock. Thread-safe.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from dataservice.dispatcher import saving
from dataservice.dispatcher.listing_limit import ListingLimit
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import Lease
from dataservice.dispatcher.snapshot_requests import Marker, StartSnapshot, Task, WorkOnSnapshot
from dataservice.dispatcher.snapshots import Snapshot
from dataservice.dispatcher.state_store import StateStore
from dataservice.vocabulary import SnapshotId, WorkerId

logger = logging.getLogger(__name__)

DEFAULT_SNAPSHOTS_PER_WORKER: Final = 3


# From an encoded dataset plan to the plan of its windows; None if it is not divided.
SnapshotPlanner = Callable[[bytes], WindowPlan | None]


class WorkAnswer(NamedTuple):
    """Windows to write; with `over` there will be no others. A `marker` has to be written too."""

    leases: tuple[Lease, ...]
    over: bool
    marker: Marker | None


class SnapshotHandlers:
    """Answers requests about snapshots; a worker writes at most `max_per_worker` at once.

    `renew_worker` is called inside a transaction.
    """

    def __init__(
        self,
        store: StateStore,
        renew_worker: Callable[[WorkerId], None],
        listing_limit: ListingLimit,
        planner: SnapshotPlanner,
        max_per_worker: int,
    ) -> None:
        self._state = store.state
        self._transaction, self._commit = store.transaction, store.commit
        self._renew_worker = renew_worker
        self._listing_limit = listing_limit
        self._planner = planner
        self._max_per_worker = max_per_worker
        # Rows written of unfinished windows, by worker. Not journaled.
        self._under_way: dict[SnapshotId, dict[WorkerId, int]] = {}

    def start(self, request: StartSnapshot) -> tuple[SnapshotId, bool]:
        """Starts a snapshot or attaches to it; returns its id and whether it existed already.

        Blocks while sources are listed.
        """
        existing = self._existing(request)
        if existing is None:
            # A client whose call timed out may ask again while the first call still lists sources.
            with self._listing_limit.exclusive(f"dataset {request.dataset_id}"):
                existing = self._existing(request)
                if existing is None:
                    return self._begin(request)
        return existing, True

    def _existing(self, request: StartSnapshot) -> SnapshotId | None:
        with self._transaction():
            existing = saving.attach(self._state, request)
            return None if existing is None else existing.snapshot_id

    def _begin(self, request: StartSnapshot) -> tuple[SnapshotId, bool]:
        with self._transaction():
            plan = saving.dataset_of(self._state, request).plan
        windows = self._planner(plan)
        with self._transaction():
            snapshot_id: SnapshotId = self._commit(saving.start(self._state, request, windows))
            logger.info("snapshot %s is written to %s", snapshot_id, request.path)
            return snapshot_id, snapshot_id != request.snapshot_id

    def work(self, request: WorkOnSnapshot, rows_under_way: int = 0) -> WorkAnswer:
        """Records what a worker has written and answers what it has to write."""
        with self._transaction():
            self._renew_worker(request.worker_id)
            self._commit(saving.report(self._state, request))
            self._commit(saving.open_round(self._state, request.snapshot_id))
            leases = self._commit(saving.lease(self._state, request))
            marker = self._commit(saving.lease_marker(self._state, request))
            snapshot = saving.find(self._state, request.snapshot_id)
            over = snapshot.is_closed or snapshot.awaits_marker
            if over:
                self._under_way.pop(snapshot.snapshot_id, None)
            else:
                workers = self._under_way.setdefault(snapshot.snapshot_id, {})
                workers[request.worker_id] = rows_under_way
            _log_end(snapshot, request)
            return WorkAnswer(leases, over, marker)

    def work_for(self, worker_id: WorkerId, active: Sequence[SnapshotId]) -> tuple[SnapshotId, ...]:
        """Returns the snapshots that a worker has to begin. Runs inside the lock."""
        return saving.work_for(self._state, worker_id, active, self._max_per_worker)

    def describe(self, snapshot_id: SnapshotId) -> tuple[Task, dict[str, Any]]:
        """Returns a snapshot's task and its progress."""
        with self._transaction():
            snapshot = saving.find(self._state, snapshot_id)
            return saving.task_of(snapshot), self._progress(snapshot)

    def list(self) -> list[dict[str, Any]]:
        """Returns the progress of all snapshots."""
        with self._transaction():
            return [self._progress(snapshot) for snapshot in self._state.snapshots.by_id.values()]

    def cancel(self, snapshot_id: SnapshotId) -> None:
        """Cancels a snapshot; one that is written or has failed stays as it is."""
        with self._transaction():
            self._commit(saving.cancel(self._state, snapshot_id))

    def _progress(self, snapshot: Snapshot) -> dict[str, Any]:
        under_way = self._under_way.get(snapshot.snapshot_id, {})
        leased = {} if snapshot.windows is None else snapshot.windows.leases
        return saving.progress(snapshot, sum(under_way.get(worker, 0) for worker in leased))


def _log_end(snapshot: Snapshot, request: WorkOnSnapshot) -> None:
    """Logs the end of a snapshot if this request has brought it."""
    if request.error and snapshot.error == request.error:
        message = json.loads(request.error)["message"]
        logger.error("snapshot %s to %s failed: %s", snapshot.snapshot_id, snapshot.path, message)
    if request.marked:
        logger.info("snapshot %s to %s is closed", snapshot.snapshot_id, snapshot.path)
