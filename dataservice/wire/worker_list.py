"""Lists of workers as compressed bytes, for thousands of readers that arrive at the same time.

Knows the message and its compression, nothing of which reader gets which workers. Invariant: after
`unfold` a reply has the workers that it stands for, and no trace of the packed form.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from dataservice.config import CONTROL_MESSAGE_MAX_BYTES
from dataservice.errors import DataLossError
from dataservice.wire import dispatcher_pb2 as pb

ListingReply: TypeAlias = pb.OpenIterationReply | pb.SyncReply | pb.SyncRoundsReply

# The fastest level: random ids shrink no further at higher ones.
_LEVEL: Final = 1


def pack(workers: Iterable[pb.WorkerInfo]) -> bytes:
    """Returns a `worker_list` that holds these workers."""
    return zlib.compress(pb.WorkerList(workers=workers).SerializeToString(), _LEVEL)


def unfold(reply: ListingReply) -> None:
    """Moves the workers of a reply's `worker_list`, except lost ones, into its `workers`.

    Leaves a reply without a `worker_list` as it is. DataLossError if the list cannot be read.
    """
    if not reply.worker_list:
        return
    lost = set(reply.lost_worker_ids)
    workers = [worker for worker in _listed(reply.worker_list) if worker.worker_id not in lost]
    workers.extend(reply.workers)
    del reply.workers[:], reply.lost_worker_ids[:]
    reply.workers.extend(workers)
    reply.worker_list = b""


def _listed(packed: bytes) -> Iterable[pb.WorkerInfo]:
    try:
        content = zlib.decompressobj().decompress(packed, CONTROL_MESSAGE_MAX_BYTES)
        return pb.WorkerList.FromString(content).workers
    except (zlib.error, DecodeError) as error:
        raise DataLossError(f"the dispatcher's list of workers cannot be read: {error}") from error
