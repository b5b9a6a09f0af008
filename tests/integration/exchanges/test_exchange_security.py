"""Tokens, TLS, and peers that speak another protocol."""

from __future__ import annotations

import pathlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from dataservice.errors import DataLossError, UnauthenticatedError
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges.message import Kind
from dataservice.runtime.exchanges.socket_client import SocketClient
from dataservice.runtime.exchanges.socket_messages import head_of
from tests.certificates import new_certificate
from tests.exchanges import answer_to
from tests.integration.exchange_ends import (
    SOCKETS,
    TIMEOUT_S,
    TOKEN,
    Ends,
    NetworkEnds,
    over_network,
    over_sockets,
    takes,
)


@pytest.mark.parametrize("token", ["wrong", TOKEN + "x"])
def test_wrong_token_is_refused(ends: Ends, server: Any, token: str) -> None:
    with (
        ends.connect(server.address, token=token) as intruder,
        pytest.raises(UnauthenticatedError, match="wrong; give both ends the same"),
    ):
        intruder.exchange({"exchange": "echo"})


@over_sockets
def test_action_with_wrong_token_is_refused(ends: Ends, server: Any) -> None:
    with (
        ends.connect(server.address, token="wrong") as intruder,
        pytest.raises(UnauthenticatedError, match="wrong; give both ends the same"),
    ):
        intruder.action("reverse", b"abc", timeout_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return new_certificate(tmp_path_factory.mktemp("tls"))


@over_network
def test_tls_server_refuses_plain_clients_and_those_without_its_ca(
    ends: NetworkEnds, tls: TlsConfig, tmp_path: pathlib.Path
) -> None:
    other = new_certificate(tmp_path / "other")
    server = ends.serve(tls=tls)
    with (
        ends.connect(server.address, tls=TlsConfig(ca_path=tls.ca_path)) as client,
        ends.connect(server.address) as plain,
        ends.connect(server.address, tls=TlsConfig(ca_path=other.ca_path)) as doubtful,
    ):
        large = bytes(10 << 20)
        with client.exchange({"exchange": "echo"}) as exchange:
            for body in (b"y", large):
                reply = answer_to(exchange, b"x", body, timeout_s=TIMEOUT_S)
                assert reply.body == pa.py_buffer(body)
        with pytest.raises(UnauthenticatedError, match="PSTRAIN_TLS_CA"):
            plain.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
        with pytest.raises(UnauthenticatedError, match=r"other/ca\.pem: name the CA"):
            doubtful.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
    with takes():
        server.stop()


@over_network
def test_one_thread_sends_while_another_receives_over_tls(
    ends: NetworkEnds, tls: TlsConfig
) -> None:
    server = ends.serve(tls=tls)
    with (
        ends.connect(server.address, tls=TlsConfig(ca_path=tls.ca_path)) as client,
        client.exchange({"exchange": "echo"}) as exchange,
        ThreadPoolExecutor(1) as pool,
    ):
        bodies = [bytes([index]) * 100_000 for index in range(100)]
        sending = pool.submit(lambda: [exchange.send(b"n", body) for body in bodies])
        for body in bodies:
            assert exchange.recv(TIMEOUT_S).body == pa.py_buffer(body)
        sending.result(TIMEOUT_S)
    server.stop()


@over_network
def test_tls_client_of_plain_server_is_told_to_start_it_with_tls(
    ends: NetworkEnds, tls: TlsConfig, server: Any
) -> None:
    with (
        ends.connect(server.address, tls=TlsConfig(ca_path=tls.ca_path)) as client,
        pytest.raises(UnauthenticatedError, match="start it with --tls-cert"),
    ):
        client.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)


def test_malformed_messages_are_refused_and_server_lives_on() -> None:
    """Bytes that are no message, headers that announce gigabytes, and a silent connection."""
    server = SOCKETS.serve()
    place = ("127.0.0.1", server.port)
    try:
        for said in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            head_of(Kind.OPEN, 1 << 26, None),
            head_of(Kind.OPEN, 10, 1 << 30),
            head_of(Kind.MESSAGE, 1, None) + b"x",
        ):
            with socket.create_connection(place, TIMEOUT_S) as stranger:
                stranger.sendall(said)
                reply = stranger.recv(1 << 16)  # one message, sent at once
                assert b"DATA_LOSS" in reply or b"did not begin" in reply
        socket.create_connection(place, TIMEOUT_S).close()
        with SOCKETS.connect(server.address) as client:
            assert client.action("reverse", b"abc", timeout_s=TIMEOUT_S) == b"cba"
    finally:
        server.stop()


def test_http_server_at_the_address_is_named_as_another_protocol() -> None:
    """A wrong port may lead to an HTTP server, for example."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer_all() -> None:
            while True:
                sock, _ = listener.accept()
                with sock:
                    if not sock.recv(1 << 16):
                        return
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        answering = pool.submit(answer_all)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = SocketClient(address, token=TOKEN)
        with pytest.raises(DataLossError, match=rf"{address}.*another protocol.*HTTP/1"):
            client.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
        socket.create_connection(listener.getsockname(), TIMEOUT_S).close()
        answering.result(TIMEOUT_S)


def test_server_that_echoes_bytes_is_refused_as_data_loss() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def repeat() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(sock.recv(1 << 16))

        repeating = pool.submit(repeat)
        client = SocketClient(f"127.0.0.1:{listener.getsockname()[1]}", token=TOKEN)
        with pytest.raises(DataLossError, match="not a server"):
            client.exchange({"exchange": "echo"}, timeout_s=TIMEOUT_S)
        repeating.result(TIMEOUT_S)
