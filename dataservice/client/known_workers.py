"""The list of workers that a reader knows: whole at first, then kept up to date by differences.

Responsible for applying these differences. Pure: knows no streams. The replies may have been
filtered before, if the filter looks at each worker by itself and never changes. Invariant:
`addresses` are exactly the workers of the set identified by `version` that pass this filter;
version 0 asks the dispatcher for the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable

from dataservice.wire import dispatcher_pb2 as pb


class KnownWorkers:
    """The addresses of the known workers by worker id. Not thread safe."""

    def __init__(self) -> None:
        self.version = 0
        self.addresses: dict[str, str] = {}

    def replace(self, workers: Iterable[pb.WorkerInfo], version: int) -> None:
        """Replaces the whole list."""
        self.addresses = {worker.worker_id: worker.address for worker in workers}
        self.version = version

    def apply(self, reply: pb.SyncReply | pb.SyncRoundsReply) -> None:
        """Applies a reply that holds all workers or the changes since the version known here."""
        if not reply.members_differ:
            self.replace(reply.workers, reply.members_version)
            return
        for worker in reply.workers:
            self.addresses[worker.worker_id] = worker.address
        for worker_id in reply.lost_worker_ids:
            self.addresses.pop(worker_id, None)
        self.version = reply.members_version
