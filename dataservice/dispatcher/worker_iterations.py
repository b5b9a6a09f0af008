"""An index of the iterations in which a worker has leases, tasks, accusations or rounds.

Pure; derived from facts as they are applied, so that the loss of a worker visits these iterations
alone, under the dispatcher's lock. Invariant: no iteration is missing, but there may be too many,
since a pair stays until its iteration or its worker is gone.
"""

from __future__ import annotations

from dataservice.vocabulary import IterationId, WorkerId


class WorkerIterations:
    """Pairs of a worker and an iteration, ordered by their first fact, so that replays agree."""

    def __init__(self) -> None:
        self._iterations: dict[WorkerId, dict[IterationId, None]] = {}
        self._workers: dict[IterationId, set[WorkerId]] = {}

    def add(self, worker_id: WorkerId, iteration_id: IterationId) -> None:
        """Adds a pair. Idempotent."""
        mine = self._iterations.setdefault(worker_id, {})
        if iteration_id not in mine:
            mine[iteration_id] = None
            self._workers.setdefault(iteration_id, set()).add(worker_id)

    def of(self, worker_id: WorkerId) -> tuple[IterationId, ...]:
        """Returns the iterations of a worker."""
        return tuple(self._iterations.get(worker_id, ()))

    def drop_worker(self, worker_id: WorkerId) -> None:
        """Removes the pairs of a worker that is gone."""
        for iteration_id in self._iterations.pop(worker_id, ()):
            self._workers[iteration_id].discard(worker_id)

    def drop_iteration(self, iteration_id: IterationId) -> None:
        """Removes the pairs of an iteration that is gone."""
        for worker_id in self._workers.pop(iteration_id, ()):
            del self._iterations[worker_id][iteration_id]
