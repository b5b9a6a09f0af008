"""A small HTTP server: GET and HEAD, one request per connection, a thread for each.

Responsible for connections and how long they last. Knows nothing of what is asked and answered.
Invariants: a request ends after bounded time, however slowly its client speaks, and so many are
under way at a time; nothing that a client sends is logged; `close` leaves no connection behind.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 10.0
_REQUEST_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 5.0
_MAX_REQUESTS: Final = 32
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    ),
)


class Request(NamedTuple):
    """A path with its query, and the headers that tell who asks."""

    target: str
    authorization: str = ""
    cookies: str = ""


class Answer(NamedTuple):
    """What goes back to the client."""

    code: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def text_answer(code: int, text: str, *headers: tuple[str, str]) -> Answer:
    """Returns an answer of plain text."""
    return Answer(code, "text/plain; charset=utf-8", text.encode(), headers)


class HttpServer(ThreadingHTTPServer):
    """Serves on ``listener``, with ``tls`` unless it is None, from now until :meth:`close`."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        answer: Callable[[Request], Answer],
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        # The library has made a socket, but only for IPv4.
        self.socket.close()
        self.socket = listener
        self.answer = answer
        self._tls = tls
        self._changed = threading.Condition()
        self._began_s: dict[Any, float] = {}  # by connection
        name = f"http-{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, name=name, daemon=True).start()

    def close(self) -> None:
        """Frees the port and ends all connections; waits a few seconds for their threads."""
        self.shutdown()
        self.server_close()
        self._end_requests_since(time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: not self._began_s, _CLOSE_TIMEOUT_S)

    def service_actions(self) -> None:
        # Called twice a second. The time-out of a socket does not end a client that sends a byte
        # now and then.
        self._end_requests_since(time.monotonic() - _REQUEST_S)

    def _end_requests_since(self, latest_s: float) -> None:
        with self._changed:
            for connection, began_s in self._began_s.items():
                if began_s <= latest_s:
                    with contextlib.suppress(OSError):
                        # Not the method of an SSLSocket, which would go on unencrypted.
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        connection.settimeout(_SILENCE_S)
        if self._tls is None:
            return connection, address
        wrapped = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            is_free = len(self._began_s) < _MAX_REQUESTS
            if is_free:
                self._began_s[request] = time.monotonic()
        if is_free:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            # On the thread of the request, since a client may be slow to shake hands.
            request.do_handshake()
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            super().shutdown_request(request)
            self._began_s.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # Clients that go away or speak no HTTP are no matter for a log.
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        logger.log(level, "a request of %s was not answered", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer

    def do_GET(self) -> None:
        answer = self._answer()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in (*_HEADERS, *answer.headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def _answer(self) -> Answer:
        given = (self.headers.get(name, "") for name in ("Authorization", "Cookie"))
        try:
            return self.server.answer(Request(self.path, *given))
        except Exception:
            logger.exception("a page could not be made")
            return text_answer(500, "the page could not be made; the monitor's log says why\n")

    def version_string(self) -> str:
        return "dataservice"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests may have the token in their address."""
