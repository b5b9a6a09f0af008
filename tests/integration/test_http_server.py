"""The HTTP server under clients that are slow, silent, too many, or cut off."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer

import pytest

from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.listening import listen
from dataservice.runtime.monitoring import http_server
from dataservice.runtime.monitoring.http_server import Answer, HttpServer, Request, text_answer
from tests.certificates import new_certificate
from tests.waiting import wait_until

READY_S = 30.0
SHORT_S = 0.5


def echo(request: Request) -> Answer:
    return text_answer(200, f"{request.target} {request.authorization} {request.cookies}")


@contextlib.contextmanager
def serving(
    answer: Callable[[Request], Answer] = echo,
    *,
    host: str = "127.0.0.1",
    tls: TlsConfig | None = None,
) -> Iterator[HttpServer]:
    context = None if tls is None else tls.server_context()
    server = HttpServer(listen(host, 0), context, answer)
    try:
        yield server
    finally:
        server.close()


def get(server: HttpServer, target: str = "/", *, method: str = "GET") -> tuple[int, str]:
    """Returns the status and the body."""
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(host), port, timeout=READY_S)
    with contextlib.closing(connection):
        connection.request(method, target, headers={"Authorization": "a", "Cookie": "c"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=READY_S)


def answers(server: HttpServer) -> bool:
    try:
        return get(server)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def threads() -> set[str]:
    return {each.name for each in threading.enumerate()}


def test_request_is_passed_on_with_those_headers_that_tell_who_asks() -> None:
    with serving() as server:
        assert get(server, "/x?y") == (200, "/x?y a c")


def test_head_is_answered_without_the_body() -> None:
    with serving() as server:
        assert get(server, method="HEAD") == (200, "")
        with connect(server) as client:
            client.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            assert b"Content-Length: 3" in client.makefile("rb").read()


def test_ipv6_host_is_served() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    with serving(host="::1") as server:
        assert get(server)[0] == 200


def test_error_in_a_page_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: Request) -> Answer:
        raise KeyError("rows")

    with serving(broken) as server:
        code, text = get(server, "/?token=secret")
    assert (code, "log" in text) == (500, True)
    assert "KeyError: 'rows'" in caplog.text
    assert "secret" not in caplog.text


def test_client_that_sends_a_byte_now_and_then_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_S", SHORT_S)

    def is_cut() -> bool:
        try:
            client.sendall(b"x")
        except OSError:
            return True
        return False

    with serving() as server, connect(server) as client:
        wait_until(is_cut, "the end of the connection")
        wait_until(lambda: answers(server), "an answer for others")


@pytest.mark.parametrize("with_tls", [False, True])
def test_silent_client_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, with_tls: bool
) -> None:
    monkeypatch.setattr(http_server, "_SILENCE_S", SHORT_S)
    tls = None
    if with_tls:
        made = new_certificate(tmp_path)
        tls = TlsConfig.of(str(made.cert_path), str(made.key_path), None)
    with serving(tls=tls) as server, connect(server) as client:
        assert client.recv(1) == b""


def test_places_of_clients_that_are_gone_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MAX_REQUESTS", 2)
    with serving() as server:
        with connect(server) as first, connect(server) as second:
            wait_until(lambda: not answers(server), "places that are taken")
            assert first.fileno() != second.fileno()
        wait_until(lambda: answers(server), "a free place")


def test_place_is_free_again_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MAX_REQUESTS", 1)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadingHTTPServer, "process_request", refuse)
            assert not answers(server)
        assert answers(server)


def test_close_ends_requests_and_their_threads() -> None:
    before = threads()
    with serving() as server:
        clients = [connect(server) for _ in range(3)]
        wait_until(lambda: len(threads() - before) >= 4, "three requests under way")
        began_s = time.monotonic()
    assert time.monotonic() - began_s < http_server._SILENCE_S
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    wait_until(lambda: threads() <= before, "the ends of the threads")
