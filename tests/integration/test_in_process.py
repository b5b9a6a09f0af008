"""Exchanges within one process: bodies without a copy, their ends, and their use by a service."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.runtime import in_process
from dataservice.runtime.frames import BatchBody
from dataservice.runtime.in_process import (
    InProcessChannel,
    InProcessExchange,
    InProcessServer,
    connect,
)
from tests.exchanges import answer_to
from tests.integration.service_cluster import local_service, read_ids
from tests.waiting import wait_until

TOKEN = "secret-of-the-test"
ADDRESS = "in-process-test:1"
MIB = 1 << 20
TIMEOUT_S = 60.0
AT_MOST_S = 30.0
DYNAMIC = ds.ShardingPolicy.DYNAMIC


def echo(_command: dict[str, Any], channel: InProcessChannel) -> None:
    while (message := channel.recv()) is not None:
        channel.send(message.header, message.body if message.handed is None else message.handed)


def count(command: dict[str, Any], channel: InProcessChannel) -> None:
    for index in range(command["n"]):
        channel.send(str(index).encode(), bytes(command["size"]))


def fail(command: dict[str, Any], channel: InProcessChannel) -> None:
    channel.send(b"before")
    if command["how"] == "user":
        raise UserFunctionError("map failed", user_traceback="x" * 100_000, source="part-7")
    raise ZeroDivisionError("division by nothing")


EXCHANGES = {"echo": echo, "count": count, "fail": fail}


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    running = InProcessServer(ADDRESS, token=TOKEN, exchanges=EXCHANGES).start()
    yield running
    running.stop()


def open_to(name: str, *, token: str = TOKEN, **command: Any) -> InProcessExchange:
    exchange = connect(ADDRESS, {"exchange": name, **command}, token=token)
    assert exchange is not None
    return exchange


def send_for_ever(exchange: InProcessExchange) -> None:
    while True:
        exchange.send(b"nobody takes the answers", bytes(MIB), timeout_s=0.2)


def receive_for_ever(exchange: InProcessExchange) -> None:
    while True:
        exchange.recv(TIMEOUT_S)


@pytest.mark.usefixtures("server")
def test_bodies_are_handed_over_without_copy() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    handed, body = BatchBody(batch, 0, 24), pa.py_buffer(b"text")
    with open_to("echo") as exchange:
        answer = answer_to(exchange, b"h", handed, timeout_s=TIMEOUT_S)
        assert (answer.header, answer.body, answer.handed) == (b"h", None, handed)
        answer = answer_to(exchange, b"h", body, timeout_s=TIMEOUT_S)
        assert answer.body is not None
        assert answer.body.address == body.address
        assert answer_to(exchange, b"", b"bytes", timeout_s=TIMEOUT_S).body == b"bytes"
        assert answer_to(exchange, b"h", timeout_s=TIMEOUT_S).body is None
        exchange.done_writing()
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange.recv(TIMEOUT_S) is None


@pytest.mark.usefixtures("server")
def test_unreceived_messages_hold_the_sender_back() -> None:
    with open_to("count", n=100, size=MIB) as exchange:
        waiting = exchange._state.to_client
        wait_until(lambda: waiting.size_bytes > 7 * MIB, "filling the queue")
        for index in range(100):
            assert waiting.size_bytes <= in_process._MAX_BYTES
            message = exchange.recv(TIMEOUT_S)
            assert message is not None
            assert int(message.header) == index
        assert exchange.recv(TIMEOUT_S) is None


@pytest.mark.usefixtures("server")
def test_wrong_token_unknown_exchange_or_empty_message_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="token"):
        open_to("echo", token="guess")
    with pytest.raises(NotFoundError, match="'count', 'echo'"):
        open_to("x")
    with open_to("echo") as exchange, pytest.raises(InvalidArgumentError, match="neither"):
        exchange.send(b"")
    assert connect("elsewhere:1", {"exchange": "echo"}, token=TOKEN) is None


def test_address_serves_one_server_and_is_free_after_stop(server: InProcessServer) -> None:
    other = InProcessServer(ADDRESS, token=TOKEN, exchanges=EXCHANGES)
    with pytest.raises(FailedPreconditionError, match=ADDRESS):
        other.start()
    other.stop()
    open_to("echo").close()
    server.stop()
    assert connect(ADDRESS, {"exchange": "echo"}, token=TOKEN) is None
    InProcessServer(ADDRESS, token=TOKEN, exchanges=EXCHANGES).start().stop()


@pytest.mark.usefixtures("server")
def test_handler_errors_arrive_after_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    with open_to("fail", how="user") as exchange:
        assert exchange.recv(TIMEOUT_S) is not None
        with pytest.raises(UserFunctionError) as caught:
            exchange.recv(TIMEOUT_S)
        assert caught.value.user_traceback == "x" * 100_000
        with pytest.raises(UserFunctionError):
            exchange.send(b"more")
    with open_to("fail", how="other") as exchange:
        assert exchange.recv(TIMEOUT_S) is not None
        with pytest.raises(InternalError, match="division by nothing"):
            exchange.recv(TIMEOUT_S)
    assert "division by nothing" in caplog.text


@pytest.mark.usefixtures("server")
def test_recv_and_send_timeouts_end_the_exchange() -> None:
    with open_to("echo") as exchange:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                exchange.recv(0.1)
    with open_to("echo") as exchange, pytest.raises(DeadlineExceededError):
        send_for_ever(exchange)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_ending_from_another_thread_unblocks_recv(end: str) -> None:
    exchange = open_to("echo")
    ending = threading.Timer(0.2, getattr(exchange, end))
    ending.start()
    began_s = time.monotonic()
    with pytest.raises(CancelledError):
        exchange.recv(TIMEOUT_S)
    assert time.monotonic() - began_s < AT_MOST_S
    with pytest.raises(CancelledError):
        exchange.send(b"more")
    ending.join(TIMEOUT_S)


def test_stop_ends_open_exchanges(server: InProcessServer) -> None:
    exchanges = [open_to("echo") for _ in range(3)]
    busy = open_to("count", n=1_000, size=MIB)
    server.stop()
    assert not server._open
    for exchange in (*exchanges, busy):
        with pytest.raises(DataServiceError):
            receive_for_ever(exchange)
        with pytest.raises(UnavailableError):
            exchange.send(b"more")


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


def test_closed_exchanges_leave_no_handler(server: InProcessServer) -> None:
    for _ in range(30):
        with open_to("count", n=30, size=MIB) as exchange:
            assert exchange.recv(TIMEOUT_S) is not None
    wait_until(lambda: not server._open, "ending all handlers")


def _finds_a_server(found: Any) -> None:
    found.value = connect(ADDRESS, {"exchange": "echo"}, token=TOKEN) is not None


@pytest.mark.usefixtures("server")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_finds_no_server() -> None:
    context = multiprocessing.get_context("fork")
    found = context.Value("b", True)
    child = context.Process(target=_finds_a_server, args=(found,))
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
