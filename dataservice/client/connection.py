"""A client's connection to the dispatcher: typed calls that are retried while it is away.

Responsible for the messages of the control plane. Knows no streams and no pipelines. Thread safe.
Invariant: no call waits longer than its time-out, and every error names the dispatcher's address.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from dataservice.config import DEFAULT_CLIENT_TIMEOUT_MS
from dataservice.errors import FailedPreconditionError
from dataservice.runtime.auth import client_tls, resolve_token
from dataservice.runtime.identity import process_age_s
from dataservice.runtime.rpc import RpcClient
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.worker_list import unfold

ATTEMPT_TIMEOUT_S = 10.0
# A program that was killed and is started again at once goes back to its position only when its old
# reader's silence counts as loss.
DEFAULT_TIMEOUT_S = DEFAULT_CLIENT_TIMEOUT_MS / 1000 + 30.0
# Well above the duration of a call to a healthy dispatcher.
PROMPT_REFUSAL_S = 0.1
MAX_LATE_REFUSALS = 4


class JoinRequest:
    """A request to join that tells the ages of the program and of the dataset, made at `made_s`.

    The dispatcher computes their starts from these ages when it handles the request. If the request
    waits because the dispatcher stands still, the program seems to have started later than it did,
    perhaps only after the end of a job that it was there for. So a late refusal may be wrong.
    """

    def __init__(
        self,
        request: pb.OpenIterationRequest,
        age_s: Callable[[], float],
        made_s: float | None = None,
    ) -> None:
        self._request = request
        self._age_s = age_s
        self._made_s = made_s
        self._asks_left = MAX_LATE_REFUSALS

    def aged(self) -> pb.OpenIterationRequest:
        """Returns the request with the present ages, which every attempt must tell anew."""
        self._request.program_age_s = self._age_s()
        if self._made_s is not None:
            self._request.dataset_age_s = time.monotonic() - self._made_s
        return self._request

    def was_refused_late(self) -> bool:
        """True if the refusal took so long that it may rest on a wrong age: ask again.

        At most `MAX_LATE_REFUSALS` requests are made in all.
        """
        self._asks_left -= 1
        late_s = self._age_s() - self._request.program_age_s
        return self._asks_left > 0 and late_s > PROMPT_REFUSAL_S


class DispatcherConnection:
    """A connection to the dispatcher at `target` (host:port)."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.token = resolve_token(None)
        self.tls = client_tls(None)
        service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
        self._rpc = RpcClient(target, service, token=self.token, tls=self.tls)

    def register_dataset(
        self, request: pb.RegisterDatasetRequest, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> str:
        """Registers a plan and returns its id."""
        reply = self._call("RegisterDataset", request, timeout_s=timeout_s)
        return str(reply.dataset_id)

    def get_dataset(
        self, dataset_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> pb.GetDatasetReply:
        """Returns a registered dataset; raises NotFoundError for an unknown id."""
        request = pb.GetDatasetRequest(dataset_id=dataset_id)
        return self._call("GetDataset", request, timeout_s=timeout_s)

    def open_iteration(
        self,
        request: pb.OpenIterationRequest,
        *,
        timeout_s: float,
        should_stop: Callable[[], bool] | None = None,
        made_s: float | None = None,
    ) -> pb.OpenIterationReply:
        """Joins a repetition of a job. The caller must show the reply's `notice` to the user.

        `made_s` is as in `ReadSpec`.
        """
        request.reader_host = socket.gethostname()
        request.reader_pid = os.getpid()
        join = JoinRequest(request, process_age_s, made_s)
        while True:
            try:
                reply = self._call(
                    "OpenIteration", join.aged, timeout_s=timeout_s, should_stop=should_stop
                )
                break
            except FailedPreconditionError:
                if not join.was_refused_late():
                    raise
        unfold(reply)
        return reply

    def sync(
        self, request: pb.SyncRequest, *, timeout_s: float, should_stop: Callable[[], bool]
    ) -> pb.SyncReply:
        """Reports marks to the dispatcher and returns its news."""
        reply = self._call("Sync", request, timeout_s=timeout_s, should_stop=should_stop)
        unfold(reply)
        return reply

    def describe_position(
        self, request: pb.DescribePositionRequest, *, timeout_s: float
    ) -> pb.Position:
        """Returns what readers that are no longer present consumed, and who reads at present."""
        return self._call("DescribePosition", request, timeout_s=timeout_s)

    def sync_rounds(
        self,
        request: pb.SyncRoundsRequest,
        *,
        timeout_s: float,
        should_stop: Callable[[], bool],
    ) -> pb.SyncRoundsReply:
        """Does for a consumer of coordinated reads what `sync` does for other readers."""
        reply = self._call("SyncRounds", request, timeout_s=timeout_s, should_stop=should_stop)
        unfold(reply)
        return reply

    def release_reader(self, request: pb.ReleaseReaderRequest, *, timeout_s: float) -> None:
        """Tells the dispatcher that the reader is done; is not retried."""
        self._rpc.call("ReleaseReader", request, timeout_s=timeout_s)

    def release_owned(self, request: pb.ReleaseOwnedRequest, *, timeout_s: float) -> int:
        """Tells the dispatcher that an owner's readers are gone; returns how many there were."""
        return int(self._call("ReleaseOwned", request, timeout_s=timeout_s).released)

    def start_snapshot(
        self, request: pb.StartSnapshotRequest, *, timeout_s: float
    ) -> pb.StartSnapshotReply:
        """Starts writing a dataset to a folder, or attaches to a snapshot being written there."""
        return self._call("StartSnapshot", request, timeout_s=timeout_s)

    def get_snapshot(self, snapshot_id: str, *, timeout_s: float) -> pb.GetSnapshotReply:
        """Returns the progress of a snapshot; raises NotFoundError for an unknown id."""
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        return self._call("GetSnapshot", request, timeout_s=timeout_s)

    def cancel_snapshot(self, snapshot_id: str, *, timeout_s: float) -> None:
        """Cancels a snapshot."""
        request = pb.CancelSnapshotRequest(snapshot_id=snapshot_id)
        self._call("CancelSnapshot", request, timeout_s=timeout_s)

    def status(self) -> dict[str, Any]:
        """Returns the workers, jobs, windows and readers that the dispatcher knows."""
        reply = self._call("GetStatus", pb.GetStatusRequest(), timeout_s=ATTEMPT_TIMEOUT_S)
        described: dict[str, Any] = json.loads(reply.json)
        return described

    def close(self) -> None:
        """Ends all calls. Idempotent."""
        self._rpc.close()

    def __enter__(self) -> DispatcherConnection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _call(
        self,
        method: str,
        request: Message | Callable[[], Message],
        *,
        timeout_s: float,
        should_stop: Callable[[], bool] | None = None,
    ) -> Any:
        return self._rpc.call_retrying(
            method,
            request,
            timeout_s=timeout_s,
            attempt_timeout_s=min(timeout_s, ATTEMPT_TIMEOUT_S),
            should_stop=should_stop,
        )
