"""A worker's calls to the dispatcher: translates between wire messages and values.

Knows the control plane, nothing of pipelines or streams. Thread-safe. Invariant: registering and
heartbeats have a connection of their own, so that long polls for leases never hold them up.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Sequence

from dataservice.config import WorkerConfig
from dataservice.errors import NotFoundError, UnavailableError
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.identity import host_identity
from dataservice.runtime.rpc import RpcClient
from dataservice.sharding import Split
from dataservice.vocabulary import ALL_WINDOWS
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.leases import Grant, Lease

_ATTEMPT_MARGIN_S = 10.0
_SHORT_TIMEOUT_S = 5.0
_LEAVE_TIMEOUT_S = 1.0


class DispatcherLink:
    """A worker's connection to the dispatcher.

    Calls retry while the dispatcher cannot be reached, except for `leave` and `give_back`.
    """

    def __init__(self, config: WorkerConfig, *, token: str, tls: TlsConfig | None) -> None:
        service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
        target = config.dispatcher_target
        self._timeout_s = config.dispatcher_timeout_s
        self._heartbeat_s = config.heartbeat_interval_s
        self._liveness = RpcClient(target, service, token=token, tls=tls)
        self._work = RpcClient(target, service, token=token, tls=tls)
        self._sequence = itertools.count(1)

    def register(
        self, address: str, should_stop: Callable[[], bool], formerly: str = ""
    ) -> pb.RegisterWorkerReply:
        """Joins the cluster under a new worker id; `formerly` is the id before it, if any."""
        request = pb.RegisterWorkerRequest(
            address=address,
            pid=os.getpid(),
            host=socket.gethostname(),
            host_id=host_identity(),
            formerly=formerly,
        )
        return self._liveness.call_retrying(
            "RegisterWorker", request, timeout_s=self._timeout_s, should_stop=should_stop
        )

    def heartbeat(
        self, request: pb.WorkerHeartbeatRequest, should_stop: Callable[[], bool]
    ) -> pb.WorkerHeartbeatReply:
        """Renews the worker's lease."""
        return self._liveness.call_retrying(
            "WorkerHeartbeat",
            request,
            timeout_s=self._timeout_s,
            attempt_timeout_s=max(_SHORT_TIMEOUT_S, 2 * self._heartbeat_s),
            should_stop=should_stop,
        )

    def leave(self, worker_id: str) -> None:
        """Tells the dispatcher that the worker stops, so that nobody waits for its lease.

        Tried once.
        """
        request = pb.WorkerHeartbeatRequest(worker_id=worker_id, leaving=True)
        self._liveness.call("WorkerHeartbeat", request, timeout_s=_LEAVE_TIMEOUT_S)

    def get_dataset(self, dataset_id: str) -> pb.GetDatasetReply:
        """Returns a registered dataset; NotFoundError for an unknown id."""
        request = pb.GetDatasetRequest(dataset_id=dataset_id)
        return self._work.call_retrying("GetDataset", request, timeout_s=self._timeout_s)

    def lease(
        self,
        worker_id: str,
        iteration_id: str,
        reader_id: str,
        count: int,
        wait_s: float,
        should_stop: Callable[[], bool],
        *,
        begins: bool = False,
    ) -> Grant:
        """Asks for up to `count` windows, waiting up to `wait_s` for the first.

        `begins` says that this worker holds none yet for a new stream to the reader.
        """
        request = pb.LeaseWindowsRequest(
            worker_id=worker_id,
            iteration_id=iteration_id,
            reader_id=reader_id,
            count=count,
            wait_s=wait_s,
            sequence=next(self._sequence),
            returned=[pb.Mark(window=ALL_WINDOWS)] if begins else [],
        )
        reply = self._work.call_retrying(
            "LeaseWindows",
            request,
            timeout_s=self._timeout_s,
            attempt_timeout_s=wait_s + _ATTEMPT_MARGIN_S,
            should_stop=should_stop,
        )
        leases = tuple(lease_of(window) for window in reply.windows)
        return Grant(leases, reply.ended, reply.pause_ms / 1_000)

    def give_back(
        self, worker_id: str, iteration_id: str, reader_id: str, leases: Sequence[Lease]
    ) -> None:
        """Returns leases that nobody will work on."""
        request = pb.LeaseWindowsRequest(
            worker_id=worker_id,
            iteration_id=iteration_id,
            reader_id=reader_id,
            returned=[
                pb.Mark(window=lease.window, generation=lease.generation, row=lease.start_row)
                for lease in leases
            ],
        )
        self._work.call("LeaseWindows", request, timeout_s=_SHORT_TIMEOUT_S)

    def finish_task(
        self, worker_id: str, iteration_id: str, should_stop: Callable[[], bool]
    ) -> None:
        """Reports that all elements of a pass without windows were handed out."""
        request = pb.FinishTaskRequest(worker_id=worker_id, iteration_id=iteration_id)
        self._work.call_retrying(
            "FinishTask", request, timeout_s=self._timeout_s, should_stop=should_stop
        )

    def get_snapshot(self, snapshot_id: str) -> pb.GetSnapshotReply:
        """Returns the description of a snapshot; NotFoundError for an unknown id."""
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        return self._work.call_retrying("GetSnapshot", request, timeout_s=self._timeout_s)

    def work_on_snapshot(
        self, request: pb.WorkOnSnapshotRequest, should_stop: Callable[[], bool]
    ) -> pb.WorkOnSnapshotReply:
        """Reports windows that are written and asks for more. Safe to repeat."""
        return self._work.call_retrying(
            "WorkOnSnapshot", request, timeout_s=self._timeout_s, should_stop=should_stop
        )

    def close(self) -> None:
        """Ends all calls in flight with CancelledError. Idempotent."""
        self._liveness.close()
        self._work.close()


class StreamLeases:
    """The leases of one stream: asks the dispatcher for them and gives them back.

    Invariant: the first request ends the leases of earlier streams from this worker to the same
    reader. Windows that those streams did not deliver would otherwise stay leased for ever.
    """

    def __init__(
        self, link: DispatcherLink, worker_id: str, iteration_id: str, reader_id: str
    ) -> None:
        self._link = link
        self._stream = (worker_id, iteration_id, reader_id)
        self._begins = True

    def ask(self, count: int, wait_s: float, should_stop: Callable[[], bool]) -> Grant:
        """Asks for up to `count` windows, as `DispatcherLink.lease` does.

        UnavailableError if the worker has to register again; the reader then opens a new stream.
        """
        try:
            grant = self._link.lease(*self._stream, count, wait_s, should_stop, begins=self._begins)
        except NotFoundError as error:
            raise UnavailableError(str(error)) from error
        self._begins = False
        return grant

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Returns leases that nobody will work on."""
        self._link.give_back(*self._stream, leases)


def lease_of(window: pb.WindowLease) -> Lease:
    """Returns the lease that a wire message describes."""
    return Lease(
        window.window,
        window.generation,
        window.start_row,
        window.epoch,
        window.window_in_epoch,
        tuple(_split(split) for split in window.splits),
    )


def _split(split: pb.Split) -> Split:
    # On the wire, an empty list of row groups is the same as none; none means the whole file.
    groups = split.row_groups
    return Split(
        split.segment,
        split.path if split.HasField("path") else None,
        tuple(groups) if groups else None,
        split.start,
        split.stop,
        split.rows if split.HasField("rows") else None,
        split.size_bytes,
        split.version,
    )
