"""The fault proxy: which data passes, which is lost, and which passes once the link is healed."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.chaos.proxy import FaultProxy, Link
from tests.ports import free_port

TIMEOUT_S = 30.0


class Echo:
    """A server that sends back what it gets, with a thread for each connection."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@pytest.fixture
def link() -> Iterator[Link]:
    echo = Echo()
    with FaultProxy() as proxy:
        yield proxy.link(echo.port)
    echo.close()


@pytest.fixture
def connect(link: Link) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def open_one() -> socket.socket:
        client = socket.create_connection(("127.0.0.1", link.port), TIMEOUT_S)
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return read_exactly(client, len(data))


def read_exactly(client: socket.socket, size_bytes: int) -> bytes:
    got = b""
    while len(got) < size_bytes:
        piece = client.recv(65_536)
        if not piece:
            break
        got += piece
    return got


def is_reset(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def is_turned_away(connect: Callable[[], socket.socket]) -> bool:
    """True if the connection is reset, while connecting or right after."""
    try:
        return is_reset(connect())
    except ConnectionError:
        return True


def test_link_without_faults_passes_everything(link: Link, connect: Callable) -> None:
    data = bytes(range(256)) * 4_000
    assert ask(connect(), data) == data
    assert ask(connect(), b"again") == b"again"
    assert link.counters.up == link.counters.down == len(data) + 5
    assert link.counters.connections == 2


def test_half_close_passes(connect: Callable) -> None:
    client = connect()
    assert ask(client, b"all") == b"all"
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""


def test_cut_resets_open_connections_only(link: Link, connect: Callable) -> None:
    client = connect()
    ask(client, b"hello")
    link.cut()
    assert is_reset(client)
    assert link.counters.resets == 1
    assert ask(connect(), b"again") == b"again"


def test_cut_after_tears_one_message_and_spares_the_next(link: Link, connect: Callable) -> None:
    client = connect()
    ask(client, b"hello")
    link.cut_after(1_000)
    client.sendall(b"x" * 5_000)
    assert is_reset(client)
    assert 5 < link.counters.up <= 1_005
    assert ask(connect(), b"y" * 5_000) == b"y" * 5_000


def test_refusing_link_resets_connections_until_healed(link: Link, connect: Callable) -> None:
    first = connect()
    ask(first, b"hello")
    link.refuse()
    assert is_reset(first)
    assert is_turned_away(connect)
    link.heal()
    assert ask(connect(), b"again") == b"again"


@pytest.mark.parametrize("way", ["up", "down"])
def test_held_data_passes_once_healed(link: Link, connect: Callable, way: str) -> None:
    client = connect()
    ask(client, b"hello")
    link.hold((way,))
    client.sendall(b"late")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert getattr(link.counters, way) == 5
    link.heal()
    client.settimeout(TIMEOUT_S)
    assert read_exactly(client, 4) == b"late"
    assert link.counters.up == link.counters.down == 9


def test_connection_opened_during_hold_is_served_once_healed(link: Link, connect: Callable) -> None:
    link.hold()
    client = connect()
    client.sendall(b"x")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    link.heal()
    client.settimeout(TIMEOUT_S)
    assert client.recv(1) == b"x"


def test_delay_applies_in_both_directions(link: Link, connect: Callable) -> None:
    client = connect()
    ask(client, b"hello")
    link.delay(0.1)
    began_s = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - began_s >= 0.19
    link.heal()


def test_sliced_data_arrives_in_order(link: Link, connect: Callable) -> None:
    client = connect()
    link.slice(3)
    data = bytes(range(256)) * 20
    assert ask(client, data) == data
    link.heal()
    assert ask(client, data) == data


def test_link_to_absent_server_resets_connections_until_the_server_comes() -> None:
    port = free_port()
    with ExitStack() as opened:
        link = opened.enter_context(FaultProxy()).link(port)

        def connect() -> socket.socket:
            client = socket.create_connection(("127.0.0.1", link.port), TIMEOUT_S)
            return opened.enter_context(client)

        assert is_turned_away(connect)
        assert link.counters.refused == 1
        opened.callback(Echo(port).close)
        assert ask(connect(), b"hello") == b"hello"
        assert link.counters.refused == 1


def test_close_ends_held_connections() -> None:
    echo, proxy = Echo(), FaultProxy()
    link = proxy.link(echo.port)
    with socket.create_connection(("127.0.0.1", link.port), TIMEOUT_S) as client:
        ask(client, b"hello")
        link.hold()
        client.sendall(b"never")
        proxy.close()
        assert is_reset(client)
    assert not proxy._thread.is_alive()
    assert (link.counters.up, link.counters.resets) == (5, 1)
    # Returns only if the connection to the server has ended, too.
    echo.close()


def test_close_ends_just_accepted_connections_without_errors() -> None:
    unraisable: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: unraisable.append(args.exc_value)
    echo = Echo()
    try:
        for _ in range(20):
            _close_while_connecting(echo.port)
        gc.collect()
    finally:
        sys.unraisablehook = hook
        echo.close()
    assert unraisable == []


def _close_while_connecting(port: int) -> None:
    clients = [socket.socket() for _ in range(3)]
    with FaultProxy() as proxy:
        link = proxy.link(port)
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", link.port))
    for client in clients:
        client.close()
