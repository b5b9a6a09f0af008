"""The dispatcher's answers to the command line: status, lists of jobs and datasets, deletions.

A part of the service that works on its state store; decides nothing itself. Invariant: an answer
describes one moment, and only deletions change anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dataservice.dispatcher import decide, status
from dataservice.dispatcher.autoscale import Estimate
from dataservice.dispatcher.soft_state import SoftState
from dataservice.dispatcher.state_store import StateStore
from dataservice.vocabulary import DatasetId


class Overview:
    """Answers as JSON values. Thread-safe."""

    def __init__(
        self,
        store: StateStore,
        soft_state: SoftState,
        wall_clock: Callable[[], float],
    ) -> None:
        self._state = store.state
        self._transaction, self._commit = store.transaction, store.commit
        self._reports, self._presence = soft_state.reports, soft_state.presence
        self._wall_clock = wall_clock

    def status(self) -> dict[str, Any]:
        """Returns workers, jobs, snapshots and heartbeats."""
        with self._transaction():
            described = status.describe(self._state, self._reports, self._wall_clock())
            return {**described, "heartbeats": self._presence.describe()}

    def jobs(self) -> list[dict[str, Any]]:
        with self._transaction():
            return status.describe_jobs(self._state, self._reports, self._wall_clock())

    def datasets(self) -> list[dict[str, Any]]:
        with self._transaction():
            return status.describe_datasets(self._state)

    def workers_enough(self) -> Estimate | None:
        """Estimates how many workers would be enough; None while too little is known."""
        with self._transaction():
            return self._reports.autoscale.overall(len(self._state.workers))

    def delete_job(self, job_name: str) -> None:
        """Deletes a job by its name or id."""
        with self._transaction():
            self._commit(decide.delete_job(self._state, job_name))

    def delete_dataset(self, dataset_id: DatasetId) -> None:
        with self._transaction():
            self._commit(decide.delete_dataset(self._state, dataset_id))
