"""Tokens and TLS: who is let in, what a stranger learns, and which errors come without a wait."""

from __future__ import annotations

import gc
import pathlib
import select
import socket
import struct
import threading
import warnings
from typing import Any

import grpc
import pytest

from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.rpc import RpcServer
from dataservice.runtime.tls_probe import _speaks_tls
from tests.certificates import new_certificate
from tests.integration.echo_service import (
    DEADLINE_S,
    TOKEN,
    EchoBox,
    Questions,
    Text,
    connect,
    serve,
)


@pytest.mark.parametrize("token", ["the-toke", "the-token-", "other"])
def test_wrong_token_is_refused(server: RpcServer, box: EchoBox, token: str) -> None:
    with connect(server.port, token=token) as client:
        with pytest.raises(UnauthenticatedError, match=rf"127.0.0.1:{server.port}.*DATASERVICE_"):
            client.call("SayBack", Text())
        with pytest.raises(UnauthenticatedError, match="token"):
            client.call("SayTogether", iter([Text()]))
        with pytest.raises(UnauthenticatedError, match="token"):
            next(client.stream("SpellOut", Text(text="a")))
        questions = Questions()
        with pytest.raises(UnauthenticatedError, match="token"):
            next(client.stream("ChatOn", questions))
        questions.end()
    assert box.calls == 0


@pytest.mark.parametrize("path", ["/echo.EchoBox/SayBack", "/echo.EchoBox/NoSuchMethod"])
def test_call_without_token_learns_nothing_of_the_service(
    server: RpcServer, box: EchoBox, path: str
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff not a message", timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in caught.value.details()
    assert box.calls == 0


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return new_certificate(tmp_path_factory.mktemp("tls"))


def test_tls_server_refuses_wrong_token_and_clients_without_its_ca(
    box: EchoBox, tls: TlsConfig
) -> None:
    with serve(box, tls=tls) as server:
        with connect(server.port, tls=TlsConfig(ca_path=tls.ca_path)) as client:
            assert client.call("SayBack", Text(text="hush")).text == "hush"
        with (
            connect(server.port, tls=TlsConfig(ca_path=tls.ca_path), token="other") as client,
            pytest.raises(UnauthenticatedError),
        ):
            client.call("SayBack", Text())
        for untrusting, reason in ((TlsConfig(), "of this system"), (None, "DATASERVICE_TLS_CA")):
            with (
                connect(server.port, tls=untrusting) as client,
                pytest.raises(UnauthenticatedError, match=reason),
            ):
                client.call("SayBack", Text(), timeout_s=DEADLINE_S)
    assert box.calls == 1


def test_untrusted_certificate_fails_without_retries(
    box: EchoBox, tls: TlsConfig, tmp_path: pathlib.Path
) -> None:
    elsewhere = new_certificate(tmp_path / "elsewhere", "elsewhere.example")
    waits: list[float] = []
    for shown, ca_path, reason in (
        (tls, elsewhere.ca_path, r"elsewhere/ca\.pem: name the CA"),
        (elsewhere, elsewhere.ca_path, "(?i)mismatch.*issued for"),
    ):
        with (
            serve(box, tls=shown) as server,
            connect(server.port, tls=TlsConfig(ca_path=ca_path)) as client,
            pytest.raises(UnauthenticatedError, match=reason),
        ):
            client.call_retrying("SayBack", Text(), timeout_s=DEADLINE_S, on_wait=waits.append)
    assert waits == []


def test_tls_client_of_plain_server_is_told_to_start_it_with_tls(
    box: EchoBox, tls: TlsConfig
) -> None:
    with (
        serve(box) as server,
        connect(server.port, tls=TlsConfig(ca_path=tls.ca_path)) as client,
        pytest.raises(UnauthenticatedError, match="start it with --tls-cert"),
    ):
        client.call("SayBack", Text(), timeout_s=DEADLINE_S)


def test_server_that_answered_before_is_not_probed_for_tls(
    box: EchoBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def ask(
        failure: UnavailableError, address: str, *, by_tls: bool, **_: str | None
    ) -> UnavailableError:
        asked.append((address, by_tls))
        return failure

    monkeypatch.setattr("dataservice.runtime.rpc.client.explained", ask)
    with serve(box) as server, connect(server.port) as client, connect(server.port) as late:
        client.call("SayBack", Text())
        server.stop()
        for each in (client, late):
            with pytest.raises(UnavailableError):
                each.call("SayBack", Text(), timeout_s=DEADLINE_S)
        assert asked == [(late.address, False)]


def test_missing_or_malformed_certificate_files_are_named(box: EchoBox, tls: TlsConfig) -> None:
    missing = TlsConfig(cert_path="no-such.pem", key_path=tls.key_path)
    with pytest.raises(FailedPreconditionError, match=r"no-such\.pem"):
        serve(box, tls=missing).start()
    with pytest.raises(InvalidArgumentError, match=r"test_rpc_security\.py are not PEM files"):
        serve(box, tls=TlsConfig(cert_path=__file__, key_path=__file__)).start()
    with pytest.raises(InvalidArgumentError, match=r"test_rpc_security\.py holds no certificate"):
        connect(1, tls=TlsConfig(ca_path=__file__))


def test_tls_probe_reset_by_server_leaks_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server resets the connection before it says a word, as a killed dispatcher does."""
    connect = socket.create_connection

    def connect_and_lose(*arguments: Any) -> socket.socket:
        connected = connect(*arguments)
        poll = select.poll()
        poll.register(connected, select.POLLRDHUP)
        assert poll.poll(10_000), "the server has not ended the connection"
        return connected

    monkeypatch.setattr(socket, "create_connection", connect_and_lose)
    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=lambda: reset_next(listener))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert _speaks_tls(address) is None
        thread.join()
        gc.collect()


def reset_next(listener: socket.socket) -> None:
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
