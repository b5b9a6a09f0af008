"""The list of all workers as messages carry it: packed once, then sent with the few changes since.

When many readers join, each is told nearly the same workers. Instead of encoding them again for
each reader, replies share a packed list and add the few changes since. Knows nothing of iterations.
Invariant: a reply stands for exactly the given workers. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dataservice.dispatcher.events import WorkerRegistered
from dataservice.vocabulary import WorkerId
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.worker_list import ListingReply, pack

FEW: Final = 64


class _Packed(NamedTuple):
    version: int = 0
    worker_ids: frozenset[WorkerId] = frozenset()
    content: bytes = b""


class PackedWorkers:
    """The list packed last; up to `few` workers, or changes to the list, are sent unpacked."""

    def __init__(self, few: int = FEW) -> None:
        self._few = few
        self._packed = _Packed()

    def add_to(
        self,
        reply: ListingReply,
        workers: Sequence[WorkerRegistered],
        version: int,
    ) -> None:
        """Adds all of these workers to a reply; `version` is that of their set, and not 0."""
        if len(workers) <= self._few:
            reply.workers.extend(worker_messages(workers))
            return
        packed, came, gone = self._packed, list[WorkerRegistered](), list[WorkerId]()
        if packed.version != version:
            came = [worker for worker in workers if worker.worker_id not in packed.worker_ids]
            gone = list(packed.worker_ids.difference([worker.worker_id for worker in workers]))
        if len(came) + len(gone) > self._few:
            worker_ids = frozenset(worker.worker_id for worker in workers)
            packed = self._packed = _Packed(version, worker_ids, pack(worker_messages(workers)))
            came, gone = [], []
        reply.worker_list = packed.content
        reply.workers.extend(worker_messages(came))
        reply.lost_worker_ids.extend(gone)


def worker_messages(workers: Iterable[WorkerRegistered]) -> list[pb.WorkerInfo]:
    """Encodes workers for readers."""
    return [
        pb.WorkerInfo(
            worker_id=worker.worker_id,
            address=worker.address,
            host=worker.host,
            host_id=worker.host_id,
        )
        for worker in workers
    ]
