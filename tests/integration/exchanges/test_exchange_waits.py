"""Waits of exchanges end, even if the peer is silent, leaves, freezes or dies."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice.errors import CancelledError, DeadlineExceededError, UnavailableError
from dataservice.runtime.exchanges.byte_streams import PlainStream
from dataservice.runtime.exchanges.message import Kind
from dataservice.runtime.exchanges.socket_connection import SocketConnection
from dataservice.runtime.exchanges.socket_messages import head_of
from tests.exchanges import answer_to
from tests.integration.exchange_ends import (
    RELEASE_STUBBORN,
    SEEN_CANCELLED,
    TIMEOUT_S,
    Ends,
    freeze,
    over_connections,
    over_network,
    send_many,
    takes,
)


def test_recv_timeout_ends_the_exchange(client: Any) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:
        with takes(0.2), pytest.raises(DeadlineExceededError, match="echo"):
            exchange.recv(0.25)
        with pytest.raises(DeadlineExceededError):
            exchange.send(b"late")


def test_send_times_out_when_peer_does_not_read(client: Any) -> None:
    RELEASE_STUBBORN.clear()
    with client.exchange({"exchange": "stubborn"}) as exchange:
        try:
            with takes(0.2), pytest.raises(DeadlineExceededError):
                send_many(exchange, 1_000_000, timeout_s=0.25)
        finally:
            RELEASE_STUBBORN.set()


def test_send_timeout_ends_concurrent_recv_with_same_error(client: Any) -> None:
    RELEASE_STUBBORN.clear()
    with client.exchange({"exchange": "stubborn"}) as exchange, ThreadPoolExecutor(1) as pool:
        try:
            receiving = pool.submit(exchange.recv, TIMEOUT_S)
            with pytest.raises(DeadlineExceededError) as sending:
                send_many(exchange, 1_000_000, timeout_s=0.25)
            with takes(), pytest.raises(DeadlineExceededError) as received:
                receiving.result(TIMEOUT_S)
            assert str(received.value) == str(sending.value)
        finally:
            RELEASE_STUBBORN.set()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_ending_from_another_thread_unblocks_recv(client: Any, end: str) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:
        timer = threading.Timer(0.2, getattr(exchange, end))
        timer.start()
        with takes(), pytest.raises(CancelledError, match="echo"):
            exchange.recv(TIMEOUT_S)
        timer.join()
        with pytest.raises(CancelledError):
            exchange.send(b"more")


def test_handler_learns_that_client_left(client: Any) -> None:
    SEEN_CANCELLED.clear()
    client.exchange({"exchange": "wait"}).close()
    assert SEEN_CANCELLED.wait(TIMEOUT_S)


@over_network
def test_opening_times_out_at_listener_that_never_answers(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with (
            ends.connect(address) as client,
            takes(0.4),
            pytest.raises(DeadlineExceededError, match=address),
        ):
            client.exchange({"exchange": "echo"}, timeout_s=0.5)


@over_connections
def test_calls_to_frozen_peer_end_at_their_deadline(
    ends: Ends, peer: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = peer
    with ends.connect(address) as client:
        exchange = client.exchange({"exchange": "echo"})
        answer_to(exchange, b"warm", timeout_s=TIMEOUT_S)
        freeze(process)
        with takes(0.9), pytest.raises(DeadlineExceededError):
            answer_to(exchange, b"frozen", b"x", timeout_s=1.0)
        with takes(0.4), pytest.raises(DeadlineExceededError):
            client.exchange({"exchange": "echo"}, timeout_s=0.5)
        with takes():
            exchange.close()


@over_connections
def test_killed_peer_is_unavailable_at_once(
    ends: Ends, peer: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = peer
    with ends.connect(address) as client, client.exchange({"exchange": "echo"}) as exchange:
        timer = threading.Timer(0.2, process.kill)
        timer.start()
        with takes(), pytest.raises(UnavailableError, match=address):
            exchange.recv(TIMEOUT_S)
        with pytest.raises(UnavailableError):
            exchange.send(b"x")
        timer.join()


@over_connections
def test_peer_killed_between_calls_is_unavailable(
    ends: Ends,
    peer: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = peer
    with ends.connect(address) as client, client.exchange({"exchange": "echo"}) as exchange:
        process.kill()
        process.wait(TIMEOUT_S)
        with takes(), pytest.raises(UnavailableError, match=address):
            send_many(exchange, 10_000, timeout_s=TIMEOUT_S)


def test_send_to_stopped_server_fails(ends: Ends, server: Any) -> None:
    """The caller may then send the message elsewhere: no server has received it."""
    with ends.connect(server.address) as client, client.exchange({"exchange": "echo"}) as exchange:
        answer_to(exchange, b"x", timeout_s=TIMEOUT_S)
        server.stop()
        with takes(), pytest.raises(UnavailableError):
            exchange.send(b"y", b"z", timeout_s=TIMEOUT_S)


class BrokenOff(BaseException):
    """An exception that can be raised anywhere, as Ctrl-C raises one."""


def test_interrupted_receive_leaves_connection_unusable_not_misread() -> None:
    ours, theirs = _connected_pair()
    connection = SocketConnection(PlainStream(ours), trusted=True)
    with theirs:
        assert connection.may_rest
        theirs.sendall(head_of(Kind.MESSAGE, 2, 1 << 20) + b"hh" + bytes(1 << 19))
        with pytest.raises(DeadlineExceededError):
            connection.receive(time.monotonic() + 0.3)  # half of the message has come, and is kept
        assert not connection.may_rest
        parser = connection._parser
        add = parser.add

        def broken_off(_size: int) -> None:
            parser.add = add  # type: ignore[method-assign]
            raise BrokenOff

        parser.add = broken_off  # type: ignore[method-assign]
        theirs.sendall(bytes(1 << 19))
        with pytest.raises(BrokenOff):
            connection.receive(time.monotonic() + TIMEOUT_S)
        with pytest.raises(UnavailableError, match="broken off"):
            connection.receive(time.monotonic() + TIMEOUT_S)
        connection.close()


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), TIMEOUT_S)
        return ours, listener.accept()[0]
