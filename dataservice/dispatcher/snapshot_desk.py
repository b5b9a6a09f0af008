"""The dispatcher's answers about snapshots: the lock and the journal around `saving`.

A part of the service, over its ledger; decides nothing itself. Invariant: as there: no answer
leaves before its facts are durable, and splits are planned outside the lock. Thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from dataservice.dispatcher import saving
from dataservice.dispatcher.ledger import Ledger
from dataservice.dispatcher.listings import Listings
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import Lease
from dataservice.dispatcher.snapshot_requests import Marker, StartSnapshot, Task, WorkOnSnapshot
from dataservice.dispatcher.snapshots import Snapshot
from dataservice.vocabulary import SnapshotId, WorkerId

logger = logging.getLogger(__name__)

DEFAULT_SNAPSHOTS_PER_WORKER: Final = 3


class SavingSettings(NamedTuple):
    """`planner` says how a plan (bytes) is cut, None: not at all.

    A worker writes at most `max_per_worker` snapshots at once.
    """

    planner: Callable[[bytes], WindowPlan | None]
    max_per_worker: int = DEFAULT_SNAPSHOTS_PER_WORKER


UNDIVIDED: Final = SavingSettings(lambda _plan: None)


class WorkAnswer(NamedTuple):
    """Windows to write; `over`: there will be none. `marker` is to be written, too."""

    leases: tuple[Lease, ...]
    over: bool
    marker: Marker | None


class SnapshotDesk:
    """`hear_of_worker` runs inside a transaction of the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        hear_of_worker: Callable[[WorkerId], None],
        settings: SavingSettings,
        listings: Listings,
    ) -> None:
        self._state = ledger.state
        self._transaction, self._commit = ledger.transaction, ledger.commit
        self._hear_of_worker = hear_of_worker
        self._settings = settings
        self._listings = listings
        # Not facts: what workers have done of windows that they have yet to finish.
        self._under_way: dict[SnapshotId, dict[WorkerId, int]] = {}

    def start(self, request: StartSnapshot) -> tuple[SnapshotId, bool]:
        """The id, and whether it was being written already. Blocks while sources are listed."""
        existing = self._existing(request)
        if existing is not None:
            return existing, True
        # A client that does not wait so long asks again meanwhile.
        with self._listings.alone(f"dataset {request.dataset_id}"):
            existing = self._existing(request)
            if existing is not None:
                return existing, True
            return self._begin(request)

    def _existing(self, request: StartSnapshot) -> SnapshotId | None:
        with self._transaction():
            existing = saving.attach(self._state, request)
            return None if existing is None else existing.snapshot_id

    def _begin(self, request: StartSnapshot) -> tuple[SnapshotId, bool]:
        with self._transaction():
            plan = saving.dataset_of(self._state, request).plan
        windows = self._settings.planner(plan)
        with self._transaction():
            snapshot_id: SnapshotId = self._commit(saving.start(self._state, request, windows))
            logger.info("snapshot %s is written to %s", snapshot_id, request.path)
            return snapshot_id, snapshot_id != request.snapshot_id

    def work(self, request: WorkOnSnapshot, rows_under_way: int = 0) -> WorkAnswer:
        """Takes what a worker has written and hands out what it is to write."""
        with self._transaction():
            self._hear_of_worker(request.worker_id)
            self._commit(saving.report(self._state, request))
            self._commit(saving.open_round(self._state, request.snapshot_id))
            leases = self._commit(saving.lease(self._state, request))
            marker = self._commit(saving.lease_marker(self._state, request))
            snapshot = saving.find(self._state, request.snapshot_id)
            over = snapshot.is_closed or snapshot.awaits_marker
            self._note(snapshot, request, 0 if over else rows_under_way)
            return WorkAnswer(leases, over, marker)

    def work_for(self, worker_id: WorkerId, active: Sequence[SnapshotId]) -> tuple[SnapshotId, ...]:
        """Inside the lock: snapshots that a worker is to begin work on."""
        return saving.work_for(self._state, worker_id, active, self._settings.max_per_worker)

    def describe(self, snapshot_id: SnapshotId) -> tuple[Task, dict[str, Any]]:
        """What a snapshot is about, and its progress."""
        with self._transaction():
            snapshot = saving.find(self._state, snapshot_id)
            return saving.task_of(snapshot), self._progress(snapshot)

    def list(self) -> list[dict[str, Any]]:
        """The progress of all snapshots."""
        with self._transaction():
            return [self._progress(snapshot) for snapshot in self._state.snapshots.by_id.values()]

    def cancel(self, snapshot_id: SnapshotId) -> None:
        """Ends a snapshot; one that is over stays as it is."""
        with self._transaction():
            self._commit(saving.cancel(self._state, snapshot_id))

    def _note(self, snapshot: Snapshot, request: WorkOnSnapshot, rows: int) -> None:
        """Logs what people ask about, and keeps the rows that are under way."""
        if request.error and snapshot.error == request.error:
            logger.error(
                "snapshot %s to %s failed: %s", snapshot.snapshot_id, snapshot.path, request.error
            )
        if request.marked:
            logger.info("snapshot %s to %s is closed", snapshot.snapshot_id, snapshot.path)
        workers = self._under_way.setdefault(snapshot.snapshot_id, {})
        workers[request.worker_id] = rows
        if snapshot.is_closed or snapshot.awaits_marker:
            del self._under_way[snapshot.snapshot_id]

    def _progress(self, snapshot: Snapshot) -> dict[str, Any]:
        under_way = self._under_way.get(snapshot.snapshot_id, {})
        leased = {} if snapshot.windows is None else snapshot.windows.leases
        return saving.progress(snapshot, sum(under_way.get(worker, 0) for worker in leased))
