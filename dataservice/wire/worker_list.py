"""Lists of workers as bytes: what thousands of readers are told when they come all at once.

Knows the message and its compression, nothing of who is told what. Invariant: `unfold` leaves in a
reply the workers that it stands for and nothing of the form in which they came.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from dataservice.config import CONTROL_MESSAGE_MAX_BYTES
from dataservice.errors import DataLossError
from dataservice.wire import dispatcher_pb2 as pb

# The fastest: ids are random and shrink no further.
_LEVEL: Final = 1


def pack(workers: Iterable[pb.WorkerInfo]) -> bytes:
    """A `worker_list` that holds these."""
    return zlib.compress(pb.WorkerList(workers=workers).SerializeToString(), _LEVEL)


def unfold(reply: pb.OpenIterationReply | pb.SyncReply) -> None:
    """Puts all workers of a reply with a `worker_list` into `workers`; leaves others as they are.

    DataLossError for a list that cannot be read.
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
