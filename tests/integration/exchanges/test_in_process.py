"""Exchanges within one process: bodies without a copy, their ends, and their use by a service."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.errors import FailedPreconditionError, UnavailableError
from dataservice.runtime.exchanges import in_process
from dataservice.runtime.exchanges.in_process import InProcessServer, connect
from dataservice.runtime.frames import BatchBody
from tests.exchanges import answer_to
from tests.integration.exchange_ends import (
    AT_MOST_S,
    IN_PROCESS,
    MIB,
    TIMEOUT_S,
    TOKEN,
    Ends,
    takes,
)
from tests.integration.service_cluster import local_service, read_ids
from tests.waiting import wait_until

DYNAMIC = ds.ShardingPolicy.DYNAMIC


@pytest.fixture
def ends() -> Ends:
    return IN_PROCESS


def test_bodies_are_handed_over_without_copy(client: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    handed, body = BatchBody(batch, 0, 24), pa.py_buffer(b"text")
    with client.exchange({"exchange": "echo"}) as exchange:
        answer = answer_to(exchange, b"h", handed, timeout_s=TIMEOUT_S)
        assert (answer.header, answer.body, answer.handed) == (b"h", None, handed)
        answer = answer_to(exchange, b"h", body, timeout_s=TIMEOUT_S)
        assert answer.body is not None
        assert answer.body.address == body.address


def test_unreceived_messages_hold_the_sender_back(client: Any) -> None:
    with client.exchange({"exchange": "count", "n": 100, "size": MIB}) as exchange:
        waiting = exchange._state.to_client
        wait_until(lambda: waiting.size_bytes > 7 * MIB, "filling the queue")
        for index in range(100):
            assert waiting.size_bytes <= in_process._MAX_BYTES
            message = exchange.recv(TIMEOUT_S)
            assert message is not None
            assert int(message.header) == index
        assert exchange.recv(TIMEOUT_S) is None


def test_address_serves_one_server_and_is_free_after_stop(
    ends: Ends, server: InProcessServer, client: Any
) -> None:
    with pytest.raises(FailedPreconditionError, match=server.address):
        ends.serve(at=server)
    client.exchange({"exchange": "echo"}).close()
    server.stop()
    assert connect(server.address, {"exchange": "echo"}, token=TOKEN) is None
    ends.serve(at=server).stop()


def test_stop_wakes_a_handler_that_waits_for_a_message(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "RECHECK_S", 100 * AT_MOST_S)
    with server.open({"exchange": "echo"}, TOKEN) as exchange:
        answer_to(exchange, b"x", timeout_s=TIMEOUT_S)
        with takes():
            server.stop(grace_s=2 * AT_MOST_S, timeout_s=3 * AT_MOST_S)
        with pytest.raises(UnavailableError, match="the server"):
            answer_to(exchange, b"y", timeout_s=TIMEOUT_S)


def test_stop_while_an_exchange_opens_ends_it_as_unavailable(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[BaseException] = []

    def stop() -> None:
        try:
            server.stop()
        except BaseException as error:
            failures.append(error)

    stopping = threading.Thread(target=stop)
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name.startswith("in-process-"):
            start(stopping)
            stopping.join(0.2)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    with server.open({"exchange": "echo"}, TOKEN) as exchange, pytest.raises(UnavailableError):
        exchange.recv(TIMEOUT_S)
    stopping.join(TIMEOUT_S)
    assert not failures


def test_closed_exchanges_leave_no_handler(server: InProcessServer, client: Any) -> None:
    for _ in range(30):
        with client.exchange({"exchange": "count", "n": 30, "size": MIB}) as exchange:
            assert exchange.recv(TIMEOUT_S) is not None
    wait_until(lambda: not server._open, "ending all handlers")


def _finds_server_at(address: str, found: Any) -> None:
    found.value = connect(address, {"exchange": "echo"}, token=TOKEN) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_finds_no_server(server: InProcessServer) -> None:
    context = multiprocessing.get_context("fork")
    found = context.Value("b", True)
    child = context.Process(target=_finds_server_at, args=(server.address, found))
    child.start()
    child.join(TIMEOUT_S)
    assert (child.exitcode, found.value) == (0, False)


def test_reader_gets_memory_of_in_process_worker_without_copy() -> None:
    def place(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = np.empty(len(columns["id"]), np.uint64)
        made[:] = made.ctypes.data
        return {"place": made}

    with local_service(workers=1) as service:
        remote = ds.Dataset.range(64 * 1_024).map(place).batch(64)
        with iter(remote.distribute(DYNAMIC, service.target)) as rows:
            views = [batch.column("place").to_numpy() for batch in rows]
            assert set(rows.stats()["protocols"].values()) == {"in_process"}
    # Elements with rows of two arrays are copies.
    whole = [view for view in views if view[0] == view[-1]]
    assert len(whole) > len(views) / 2
    assert all(0 <= view.ctypes.data - int(view[0]) < 8 * 64 * 1_024 for view in whole)


def test_stopped_in_process_worker_loses_no_row() -> None:
    with local_service(workers=2) as service:
        remote = ds.Dataset.range(400_000).batch(100).distribute(DYNAMIC, service.target)
        with iter(remote) as rows:
            ids = [next(rows).column("id").to_numpy() for _ in range(50)]
            service.workers[0].stop()
            ids += [batch.column("id").to_numpy() for batch in rows]
    assert np.array_equal(np.sort(np.concatenate(ids)), np.arange(400_000))


def test_worker_set_to_flight_refuses_local_readers() -> None:
    with local_service(workers=0) as service:
        service.add_worker(data_transfer_protocol="flight")
        remote = ds.Dataset.range(1_000).batch(10)
        assert read_ids(remote.distribute(DYNAMIC, service.target)) == list(range(1_000))
        demanding = remote.distribute(DYNAMIC, service.target, data_transfer_protocol="local")
        with pytest.raises(FailedPreconditionError, match="'local'"):
            read_ids(demanding)
