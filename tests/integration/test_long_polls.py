"""More pairs of a reader and a worker wait for windows than the dispatcher has threads."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.config import CONTROL_MAX_POLLS, CONTROL_MAX_THREADS
from dataservice.runtime.auth import TOKEN_METADATA_KEY, resolve_token
from dataservice.runtime.rpc import RpcClient
from dataservice.runtime.rpc.conventions import PROTOCOL_METADATA_KEY
from dataservice.vocabulary import PROTOCOL_VERSION, parse_target
from dataservice.wire import dispatcher_pb2 as pb
from tests.waiting import wait_until

PAIRS = CONTROL_MAX_THREADS + 100
BURST = 204
TIMEOUT_S = 120.0
# Far longer than a reply takes on a busy machine, far shorter than a poll waits.
PROMPT_S = 20.0
POLL_S = 100.0


def poll(channel: Any, request: pb.LeaseWindowsRequest) -> Any:
    """Starts a long poll and returns its call."""
    call = channel.unary_unary(
        "/dataservice.Dispatcher/LeaseWindows",
        request_serializer=pb.LeaseWindowsRequest.SerializeToString,
        response_deserializer=pb.LeaseWindowsReply.FromString,
    )
    metadata = (
        (TOKEN_METADATA_KEY, resolve_token(None)),
        (PROTOCOL_METADATA_KEY, str(PROTOCOL_VERSION)),
    )
    return call.future(request, metadata=metadata, timeout=TIMEOUT_S)


def begin(channel: Any, request: pb.LeaseWindowsRequest, polls: list[Any], number: int) -> None:
    """Starts ``number`` polls; returns once at most CONTROL_MAX_POLLS of all are unanswered."""
    polls += [poll(channel, request) for _ in range(number)]
    wait_until(
        lambda: sum(call.done() for call in polls) >= len(polls) - CONTROL_MAX_POLLS,
        "answers for those who may not wait",
    )


def test_heartbeats_are_answered_while_polls_outnumber_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than this test takes on a busy machine.
    monkeypatch.setattr("dataservice.dispatcher.service.LONG_POLL_MAX_S", POLL_S)
    service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
    with (
        ds.DispatchServer() as server,
        DispatcherConnection(server.target) as connection,
        RpcClient(server.target, service, token=resolve_token(None)) as worker,
        grpc.insecure_channel(parse_target(server.target)) as channel,
    ):
        dataset_id = ds.register_dataset(server.target, ds.Dataset.range(10))
        place = pb.RegisterWorkerRequest(address="there:1")
        worker_id = worker.call("RegisterWorker", place).worker_id
        joined = connection.open_iteration(
            pb.OpenIterationRequest(dataset_id=dataset_id, policy=1, reader_id="reader"),
            timeout_s=TIMEOUT_S,
        )
        pair = pb.LeaseWindowsRequest(
            worker_id=worker_id, iteration_id=joined.iteration_id, reader_id="reader", count=1
        )
        while worker.call("LeaseWindows", pair).windows:
            pass
        waiting = pb.LeaseWindowsRequest(wait_s=POLL_S)
        waiting.MergeFrom(pair)
        polls: list[Any] = []
        begin(channel, waiting, polls, CONTROL_MAX_POLLS)
        # Each burst finds enough threads, even while the calls answered last still hold theirs.
        while len(polls) < PAIRS:
            begin(channel, waiting, polls, min(BURST, PAIRS - len(polls)))
        replies = [call.result() for call in polls if call.done()]
        assert len(replies) == PAIRS - CONTROL_MAX_POLLS
        assert all(0 < reply.pause_ms <= 30_000 for reply in replies)
        for _ in range(20):
            began_s = time.monotonic()
            worker.call("WorkerHeartbeat", pb.WorkerHeartbeatRequest(worker_id=worker_id))
            assert time.monotonic() - began_s < PROMPT_S
        assert sum(not call.done() for call in polls) == CONTROL_MAX_POLLS, "they wait still"
        # Releasing the reader ends all polls that wait for its windows.
        connection.release_reader(
            pb.ReleaseReaderRequest(iteration_id=joined.iteration_id, reader_id="reader"),
            timeout_s=TIMEOUT_S,
        )
        assert sum(call.result(PROMPT_S).ended for call in polls) == CONTROL_MAX_POLLS
