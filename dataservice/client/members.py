"""The list of workers that a reader knows: whole at first, then kept up to date by differences.

Pure. What it is given may have been narrowed to some workers, by what each of them is and always
the same way. Invariant: held here are exactly those that are left so of the set that `version`
stands for; version 0 asks for all anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from dataservice.wire import dispatcher_pb2 as pb


class Members:
    """Addresses by worker id. Not thread safe."""

    def __init__(self) -> None:
        self.version = 0
        self.addresses: dict[str, str] = {}

    def replace(self, workers: Iterable[pb.WorkerInfo], version: int) -> None:
        """All there are."""
        self.addresses = {worker.worker_id: worker.address for worker in workers}
        self.version = version

    def take(self, reply: pb.SyncReply) -> None:
        """An answer, with all workers or with changes since the version that was known here."""
        if not reply.members_differ:
            self.replace(reply.workers, reply.members_version)
            return
        for worker in reply.workers:
            self.addresses[worker.worker_id] = worker.address
        for worker_id in reply.lost_worker_ids:
            self.addresses.pop(worker_id, None)
        self.version = reply.members_version
