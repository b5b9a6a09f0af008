"""Exchanges of requests hold no thread between requests; a server at a limit says so."""

from __future__ import annotations

import contextlib
import errno
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dataservice.errors import DataServiceError, ResourceExhaustedError, UnavailableError
from dataservice.runtime.exchanges import connection_server
from dataservice.runtime.exchanges.connection_channel import ConnectionChannel, Requests
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.shared_memory import is_supported
from pstrain.sessions.presence import Presence
from tests.exchanges import answer_to
from tests.integration.exchange_ends import SHARED_MEMORY, SOCKETS, TIMEOUT_S, Ends, takes
from tests.waiting import wait_until

AT_ONCE = 2
CLIENTS = 6


class Service:
    """A server that echoes requests; some are stuck until `release`, others fail."""

    def __init__(self, ends: Ends) -> None:
        self.presence = Presence()
        self.release = threading.Event()
        self.stuck = threading.Semaphore(0)
        self.answering: set[ConnectionChannel] = set()
        self.most_at_once = 0
        requests = {"requests": Requests(self._answer, self.presence)}
        self.server: Any = ends.serve(requests)
        self.server._admission.at_once = AT_ONCE

    def _answer(self, channel: ConnectionChannel) -> bool:
        message = channel.recv()
        if message is None:
            return False
        if message.header == b"at the limit":
            raise OSError(errno.EMFILE, "Too many open files")
        self.answering.add(channel)
        self.most_at_once = max(self.most_at_once, len(self.answering))
        if message.header == b"stuck":
            self.stuck.release()
            self.release.wait(TIMEOUT_S)
        channel.send(message.header, message.body)
        self.answering.discard(channel)
        return True

    @property
    def resting(self) -> int:
        return len(self.server._readable.get_map()) - 1

    def await_resting(self, count: int) -> None:
        wait_until(lambda: self.resting == count, f"{count} resting exchanges")


@pytest.fixture(params=[SOCKETS, *([SHARED_MEMORY] if is_supported() else [])])
def ends(request: pytest.FixtureRequest) -> Ends:
    return request.param


@pytest.fixture
def service(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(connection_server, "_STAY_S", 0.0)
    service = Service(ends)
    yield service
    service.release.set()
    service.server.stop()


@pytest.fixture
def exchanges(ends: Ends, service: Service) -> Iterator[list[Any]]:
    with ends.connect(service.server.address) as client, contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(client.exchange({"exchange": "requests"})) for _ in range(CLIENTS)
        ]


def echoes(exchange: ConnectionExchange, body: bytes) -> bool:
    answer = answer_to(exchange, b"x", body, timeout_s=TIMEOUT_S)
    return answer.body is not None and answer.body.to_pybytes() == body


def test_open_exchanges_rest_without_threads_and_are_answered_again(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.server._threads, "_kept_s", 0.0)
    for size in (10, 1_000_000):
        for exchange in exchanges:
            assert echoes(exchange, b"x" * size)
        service.await_resting(CLIENTS)
        wait_until(lambda: len(service.server._threads) == 0, "the end of all threads")


def test_burst_of_requests_is_answered_a_few_at_once(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    service.most_at_once = 0
    monkeypatch.setattr(service.server._admission, "slow_s", TIMEOUT_S)
    for exchange in exchanges:
        for header in (b"first", b"second"):
            exchange.send(header, b"x" * 100_000, timeout_s=TIMEOUT_S)
    for exchange in exchanges:
        assert [exchange.recv(TIMEOUT_S).header for _ in range(2)] == [b"first", b"second"]
    assert 1 <= service.most_at_once <= AT_ONCE


def test_clients_are_answered_although_more_than_are_answered_at_once_are_stuck(
    service: Service, exchanges: list[Any]
) -> None:
    stuck, others = exchanges[: AT_ONCE + 1], exchanges[AT_ONCE + 1 :]
    for exchange in stuck:
        exchange.send(b"stuck", timeout_s=TIMEOUT_S)
    for _ in stuck:
        assert service.stuck.acquire(timeout=TIMEOUT_S)
    with takes():
        for exchange in others:
            assert echoes(exchange, b"x")
    service.release.set()
    assert [exchange.recv(TIMEOUT_S).header for exchange in stuck] == [b"stuck"] * len(stuck)


def test_few_exchanges_keep_their_threads_between_requests(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_server, "_STAY_S", TIMEOUT_S)
    service = Service(ends)
    try:
        with (
            ends.connect(service.server.address) as client,
            client.exchange({"exchange": "requests"}) as exchange,
        ):
            for _ in range(3):
                assert echoes(exchange, b"x")
                assert (service.resting, len(service.server._threads)) == (0, 1)
            with takes():
                service.server.stop()
    finally:
        service.server.stop()


def test_only_a_few_of_many_exchanges_keep_their_threads(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    monkeypatch.setattr(connection_server, "_STAY_S", TIMEOUT_S)
    for exchange in exchanges:
        assert echoes(exchange, b"x")
    service.await_resting(CLIENTS - AT_ONCE)


def test_no_exchange_keeps_its_thread_while_others_wait_for_one(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    monkeypatch.setattr(connection_server, "_STAY_S", TIMEOUT_S)
    monkeypatch.setattr(service.server._admission, "slow_s", TIMEOUT_S)
    asking = exchanges[: AT_ONCE + 1]
    for exchange in asking:
        exchange.send(b"stuck", timeout_s=TIMEOUT_S)
    wait_until(lambda: service.server._admission.has_waiting, "a waiting client")
    service.release.set()
    with takes():
        for exchange in asking:
            assert exchange.recv(TIMEOUT_S).header == b"stuck"


def test_exchange_that_cannot_rest_ends_and_its_client_is_told(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)

    tried = threading.Event()

    def register(*_: object) -> None:
        tried.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(service.server._readable, "register", register)
    assert echoes(exchanges[0], b"x")
    assert tried.wait(TIMEOUT_S)
    with pytest.raises(UnavailableError, match="can watch no further client"):
        answer_to(exchanges[0], b"x", None, timeout_s=TIMEOUT_S)
    wait_until(lambda: len(service.server._open) == CLIENTS - 1, "the end of the exchange")


def test_end_of_a_resting_exchange_is_noticed(service: Service, exchanges: list[Any]) -> None:
    service.await_resting(CLIENTS)
    assert not service.presence.is_over(0)
    exchanges[0].done_writing()
    assert exchanges[0].recv(TIMEOUT_S) is None
    exchanges[0].close()
    service.await_resting(CLIENTS - 1)
    for exchange in exchanges[1:]:
        exchange.close()
    wait_until(lambda: service.presence.is_over(0), "the absence of clients")
    assert not service.server._open


def test_stop_ends_exchanges_that_rest_or_wait_to_be_answered(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    monkeypatch.setattr(service.server._admission, "slow_s", TIMEOUT_S)
    for exchange in exchanges[: AT_ONCE + 1]:
        exchange.send(b"stuck", timeout_s=TIMEOUT_S)
    wait_until(lambda: service.server._admission.has_waiting, "a waiting client")
    stopping = threading.Thread(target=service.server.stop)
    with takes():
        stopping.start()
        for exchange in exchanges[AT_ONCE:]:
            with pytest.raises(UnavailableError):
                exchange.recv(TIMEOUT_S)
        service.release.set()
        stopping.join(TIMEOUT_S)
    for exchange in exchanges[:AT_ONCE]:
        with contextlib.suppress(DataServiceError):
            exchange.recv(TIMEOUT_S)
    assert service.presence.is_over(0)
    assert not service.server._open


def test_requests_are_answered_while_no_further_client_can_be_accepted(
    ends: Ends, service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    server, refusals = service.server, threading.Semaphore(0)
    accept_one, tried_s = server._accept_one, list[float]()

    def refuse(_listener: object) -> bool:
        tried_s.append(time.monotonic())
        refusals.release()
        return False

    server._give_up_spare()  # as for a client that was gone at once
    monkeypatch.setattr(connection_server, "_RECHECK_S", 0.2)
    monkeypatch.setattr(server, "_accept_one", refuse)
    with ends.connect(server.address) as client:
        opened: list[Any] = []
        opening = threading.Thread(
            target=lambda: opened.append(client.exchange({"exchange": "requests"}))
        )
        opening.start()
        for _ in range(2):
            assert refusals.acquire(timeout=TIMEOUT_S)
            assert echoes(exchanges[0], b"x")
        assert tried_s[1] - tried_s[0] >= 0.2, "tried again without a pause"
        monkeypatch.setattr(server, "_accept_one", accept_one)
        opening.join(TIMEOUT_S)
        with opened[0] as exchange:
            assert echoes(exchange, b"x")
        assert server._spare is not None


def test_requests_wait_while_the_system_allows_no_further_thread(
    service: Service, exchanges: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.await_resting(CLIENTS)
    refusals = threading.Semaphore(0)

    def refuse(_work: object) -> None:
        refusals.release()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(service.server._threads, "run", refuse)
        for exchange in exchanges:
            exchange.send(b"x", timeout_s=TIMEOUT_S)
        for _ in range(2):  # tried again
            assert refusals.acquire(timeout=TIMEOUT_S)
    for exchange in exchanges:
        assert exchange.recv(TIMEOUT_S).header == b"x"


def test_exchange_ends_although_its_client_cannot_be_told(service: Service) -> None:
    class Channel:
        peer = "peer"
        is_closed = False

        def fail(self, error: BaseException) -> None:
            raise MemoryError from error

        def close(self) -> None:
            self.is_closed = True

    def step(_channel: object) -> bool:
        raise ValueError("broken")

    channel: Any = Channel()
    service.server._open.add(channel)
    with pytest.raises(MemoryError):
        service.server._goes_on(channel, step)
    assert channel.is_closed
    assert not service.server._open


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
def test_client_is_told_that_server_has_no_file_left_for_it(
    ends: Ends, peer: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = peer
    most = psutil.Process(process.pid).num_fds() + 2
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
    with ends.connect(address) as client:
        with contextlib.ExitStack() as stack:

            def open_many(count: int) -> None:
                for _ in range(count):
                    opened = client.exchange({"exchange": "echo"}, timeout_s=10.0)
                    assert echoes(stack.enter_context(opened), b"x")

            for _ in range(2):  # the server can refuse more than one
                with pytest.raises(ResourceExhaustedError, match="ulimit"):
                    open_many(most)

        def is_served() -> bool:
            with (
                contextlib.suppress(ResourceExhaustedError),
                client.exchange({"exchange": "echo"}) as exchange,
            ):
                return echoes(exchange, b"x")
            return False

        wait_until(is_served, "room for a client, after others have left")


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
@pytest.mark.parametrize("ends", [SHARED_MEMORY], ids=["shared_memory"])
@pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")
def test_client_is_told_that_server_has_no_file_left_for_its_memory(
    ends: Ends, peer: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = peer
    with ends.connect(address) as client, client.exchange({"exchange": "echo"}) as opened:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
        with pytest.raises(ResourceExhaustedError, match=f"{process.pid}.*ulimit"):
            answer_to(opened, b"x", bytes(100_000), timeout_s=TIMEOUT_S)


def test_client_is_told_that_its_request_needs_more_files(
    service: Service, exchanges: list[Any]
) -> None:
    with pytest.raises(ResourceExhaustedError, match=f"{service.server.address}.*ulimit"):
        answer_to(exchanges[0], b"at the limit", timeout_s=TIMEOUT_S)
