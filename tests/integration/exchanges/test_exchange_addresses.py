"""Addresses that nobody serves, that are served again, and that are malformed."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import time
from typing import Any

import pytest

from dataservice.errors import (
    AddressInUseError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.exchanges.socket_client import SocketClient
from dataservice.runtime.exchanges.socket_server import SocketServer
from tests.integration.exchange_ends import (
    ACTIONS,
    EXCHANGES,
    TIMEOUT_S,
    TOKEN,
    Ends,
    over_network,
    over_sockets,
    takes,
)
from tests.ports import free_port
from tests.waiting import wait_until


@over_network
def test_address_without_listener_is_unavailable(ends: Ends, server: Any) -> None:
    address = server.address
    server.stop()
    with (
        ends.connect(address) as client,
        takes(),
        pytest.raises(UnavailableError, match=address),
    ):
        client.exchange({"exchange": "echo"})


@over_sockets
def test_action_at_address_without_listener_is_unavailable(ends: Ends, server: Any) -> None:
    address = server.address
    server.stop()
    with (
        ends.connect(address) as client,
        takes(),
        pytest.raises(UnavailableError, match=address),
    ):
        client.action("reverse", timeout_s=TIMEOUT_S)


def _refuse_first(monkeypatch: pytest.MonkeyPatch, refusals: int, number: int) -> None:
    """Lets the network refuse to reach a host, for the first attempts to connect."""
    connect, attempts = socket.socket.connect, itertools.count()

    def refusing(sock: socket.socket, address: Any) -> None:
        if next(attempts) < refusals:
            raise OSError(number, os.strerror(number))
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", refusing)


@over_sockets
@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH], ids=os.strerror)
def test_host_that_the_network_reaches_again_in_time_is_connected_to(
    ends: Ends, server: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_first(monkeypatch, 2, number)
    with ends.connect(server.address) as client, takes():
        assert client.action("reverse", b"ab", timeout_s=TIMEOUT_S) == b"ba"


@over_sockets
def test_host_that_the_network_does_not_reach_has_not_answered_in_time(
    ends: Ends, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_first(monkeypatch, 1_000, errno.EHOSTUNREACH)
    with (
        ends.connect(server.address) as client,
        pytest.raises(DeadlineExceededError, match=os.strerror(errno.EHOSTUNREACH)),
    ):
        client.action("reverse", timeout_s=0.5)


@over_sockets
@pytest.mark.parametrize("cut_off", [0, 1])
def test_server_is_gone_if_one_address_of_its_host_says_so_and_the_other_is_not_reached(
    ends: Ends, server: Any, cut_off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.address
    server.stop()
    found = socket.getaddrinfo(*address.rsplit(":", 1), type=socket.SOCK_STREAM)
    connect, attempts = socket.socket.connect, itertools.count()

    def reaching_one(sock: socket.socket, place: Any) -> None:
        if next(attempts) % 2 == cut_off:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        connect(sock, place)

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found * 2)
    monkeypatch.setattr(socket.socket, "connect", reaching_one)
    with ends.connect(address) as client, takes(), pytest.raises(UnavailableError, match="refused"):
        client.action("reverse", timeout_s=TIMEOUT_S)


@over_network
def test_client_reconnects_to_restarted_server(ends: Ends, server: Any) -> None:
    with ends.connect(server.address) as client:
        client.exchange({"exchange": "echo"}).close()
        server.stop()
        with pytest.raises(UnavailableError):
            client.exchange({"exchange": "echo"})
        again = ends.serve(at=server)
        try:
            give_up_s = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    client.exchange({"exchange": "echo"}).close()
                    break
                except UnavailableError:
                    assert time.monotonic() < give_up_s
                    time.sleep(0.05)
        finally:
            again.stop()


@pytest.mark.long
@over_network
def test_server_back_after_long_absence_is_reached_within_seconds(ends: Ends, server: Any) -> None:
    server.stop()
    with ends.connect(server.address) as client:

        def answers() -> bool:
            try:
                client.exchange({"exchange": "echo"}, timeout_s=1.0).close()
            except (UnavailableError, DeadlineExceededError):
                return False
            return True

        give_up_s = time.monotonic() + 12.0
        while time.monotonic() < give_up_s:
            assert not answers()
            time.sleep(0.05)
        again = ends.serve(at=server)
        try:
            # gRPC's own pauses between attempts would have grown to six seconds by now.
            wait_until(answers, "the server to be reached", 5.0)
        finally:
            again.stop()


@over_network
def test_port_in_use_is_refused_and_named(ends: Ends, server: Any) -> None:
    with pytest.raises(AddressInUseError, match=rf"port {server.port} .*--port"):
        ends.serve(at=server)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_listening_on_host_of_another_machine_is_refused(host: str) -> None:
    server = SocketServer(host, 0, token=TOKEN, exchanges={})
    with pytest.raises(InvalidArgumentError, match=rf"{host}.*--host of this machine"):
        server.start()
    server.stop()


def test_host_name_with_several_addresses_reaches_the_one_served() -> None:
    server = SocketServer("localhost", 0, token=TOKEN, exchanges=EXCHANGES, actions=ACTIONS)
    server.start()
    try:
        client = SocketClient(server.address, token=TOKEN)
        assert server.address.startswith("localhost:")
        assert client.action("reverse", b"abc", timeout_s=TIMEOUT_S) == b"cba"
    finally:
        server.stop()


def test_malformed_host_name_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match=r"a\.\.b:80 cannot be reached"):
        SocketClient("a..b:80", token=TOKEN).action("reverse", timeout_s=TIMEOUT_S)


@over_network
def test_unavailable_error_has_another_error_as_cause(server: Any, ends: Ends) -> None:
    server.stop()
    with ends.connect(server.address) as client, pytest.raises(UnavailableError) as caught:
        client.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
    assert caught.value.__cause__ not in (None, caught.value)


def test_self_connected_socket_counts_as_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens by chance if a port of the range for outgoing connections is not served."""
    port = free_port()

    class Own(socket.socket):
        def connect(self, place: Any) -> None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(place)
            super().connect(place)

    monkeypatch.setattr(socket, "socket", Own)
    client = SocketClient(f"127.0.0.1:{port}", token=TOKEN)
    with pytest.raises(UnavailableError, match="nobody listens there"):
        client.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
