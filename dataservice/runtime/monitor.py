"""A read-only HTTP server for people and monitoring systems: a page, JSON, metrics, health.

Responsible for who may read what by which path. Must not know what is shown: a subject is asked at
most once a second, however many read. Invariants: nothing can be changed through it; all but
``/healthz`` asks for the token, which never travels back and is in no log; each request ends after
bounded time, and so many are answered at a time.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import ssl
import threading
import time
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Protocol, Self
from urllib.parse import parse_qs, urlsplit

from dataservice.errors import DataServiceError, UnimplementedError
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TlsConfig, resolve_token, tokens_equal
from dataservice.runtime.exposure import check_listener
from dataservice.runtime.listening import listen
from dataservice.runtime.metrics import Metric, exposition
from dataservice.runtime.report import Block, as_page

logger = logging.getLogger(__name__)

REFRESH_S: Final = 2
_FRESH_S: Final = 1.0
_REQUEST_TIMEOUT_S: Final = 10.0
_MAX_REQUESTS: Final = 32
_COOKIE: Final = "dataservice_monitor"
_HOW_TO_ENTER: Final = (
    "This asks for the token of the cluster. In a browser, add ?token=TOKEN to the address once; "
    "programs send the header Authorization: Bearer TOKEN. The token is in the file "
    "~/.local/state/dataservice/token, unless you have set DATASERVICE_TOKEN or "
    "DATASERVICE_TOKEN_FILE.\n"
)


class Subject(Protocol):
    """What a monitor shows; asked for its status by one thread at a time."""

    @property
    def title(self) -> str: ...

    def status(self) -> dict[str, Any]:
        """Asks for the status, in JSON form; raises a DataServiceError if it cannot be had."""

    def report(self, status: dict[str, Any]) -> list[Block]:
        """Returns a status for people."""

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        """Returns a status as figures; None: it cannot be had, which is a figure too."""


class _Answer(NamedTuple):
    code: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class HttpMonitor:
    """Serves what is known of ``subject``; ``port=0`` binds any free port.

    Raises InvalidArgumentError for a host that the network can reach without TLS or
    ``insecure_network``.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls_cert_path: str | None = None,
        tls_key_path: str | None = None,
        insecure_network: bool = False,
        start: bool = True,
    ) -> None:
        check_listener(
            host,
            port,
            token=token,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            insecure_network=insecure_network,
        )
        self._subject, self._host, self._port = subject, host, port
        self._tls = TlsConfig.of(tls_cert_path, tls_key_path, None)
        self._token = resolve_token(token)
        # Browsers send cookies to all ports of a host: a stolen one opens no more than this page.
        self._pass = hmac.digest(self._token.encode(), b"monitor", "sha256").hex()
        self._lock = threading.Lock()
        self._asked_s = -_FRESH_S
        self._known: dict[str, Any] | DataServiceError = {}
        self._server: _Server | None = None
        self._stopped = threading.Event()
        if start:
            self.start()

    @property
    def address(self) -> str:
        """The address, as ``host:port``."""
        return format_address(self._host, self._port)

    @property
    def url(self) -> str:
        """The address for a browser, without the token."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}/"

    def start(self) -> None:
        """Binds the port and serves.

        Raises AddressInUseError if the port is taken, InvalidArgumentError if it cannot be opened.
        """
        context = None if self._tls is None else self._tls.server_context()
        self._server = _Server(listen(self._host, self._port), context, self)
        self._port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, name=f"monitor-{self.address}", daemon=True
        ).start()

    def join(self) -> None:
        """Waits until :meth:`stop` is called."""
        self._stopped.wait()

    def stop(self) -> None:
        """Refuses further requests and frees the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self._stopped.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, target: str, authorization: str, cookies: str) -> _Answer:
        """Answers a GET of ``target``, a path with its query."""
        url = urlsplit(target)
        if url.path == "/healthz":
            return self._health()
        given = parse_qs(url.query).get("token", [""])[0]
        if given and tokens_equal(self._token, given):
            return self._let_in(url.path)
        if not self._may_read(authorization, cookies):
            return _text(401, _HOW_TO_ENTER, ("WWW-Authenticate", "Bearer"))
        pages = {"/": self._page, "/status.json": self._json, "/metrics": self._metrics}
        if url.path not in pages:
            known = ", ".join([*pages, "/healthz"])
            return _text(404, f"there is no page {url.path!r}, but {known}\n")
        return pages[url.path]()

    def _may_read(self, authorization: str, cookies: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return tokens_equal(self._token, given.strip())
        try:
            found = SimpleCookie(cookies).get(_COOKIE)
        except CookieError:
            return False
        return found is not None and tokens_equal(self._pass, found.value)

    def _let_in(self, path: str) -> _Answer:
        """Moves the right to read from the address, which browsers remember, into a cookie."""
        cookie = f"{_COOKIE}={self._pass}; HttpOnly; SameSite=Strict; Path=/"
        location = path if path.startswith("/") and not path.startswith("//") else "/"
        return _Answer(303, "text/plain", b"", (("Set-Cookie", cookie), ("Location", location)))

    def _health(self) -> _Answer:
        try:
            self._status()
        except DataServiceError as error:
            # Not the message, which may name hosts and files: whoever asks has shown no token.
            return _text(503, f"{type(error).__name__}\n")
        return _text(200, "ok\n")

    def _page(self) -> _Answer:
        try:
            blocks, code = self._subject.report(self._status()), 200
        except DataServiceError as error:
            blocks, code = [str(error)], 503
        page = as_page(self._subject.title, blocks, refresh_s=REFRESH_S)
        return _Answer(code, "text/html; charset=utf-8", page.encode())

    def _json(self) -> _Answer:
        try:
            value, code = self._status(), 200
        except DataServiceError as error:
            value, code = {"error": str(error)}, 503
        return _Answer(code, "application/json", json.dumps(value).encode())

    def _metrics(self) -> _Answer:
        status: dict[str, Any] | None
        try:
            status = self._status()
        except DataServiceError as error:
            logger.warning("%s gave no status: %s", self._subject.title, error)
            status = None
        try:
            return _Answer(200, *exposition(self._subject.metrics(status)))
        except UnimplementedError as error:
            return _text(501, f"{error}\n")

    def _status(self) -> dict[str, Any]:
        """Returns the subject's status, at most a second old; raises what asking for it raised."""
        with self._lock:
            if time.monotonic() - self._asked_s >= _FRESH_S:
                try:
                    self._known = self._subject.status()
                except DataServiceError as error:
                    self._known = error
                self._asked_s = time.monotonic()
            known = self._known
        if isinstance(known, DataServiceError):
            raise known
        return known


def _text(code: int, text: str, *headers: tuple[str, str]) -> _Answer:
    return _Answer(code, "text/plain; charset=utf-8", text.encode(), headers)


class _Server(ThreadingHTTPServer):
    """Answers each request on a thread of its own, up to a number of them at a time."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext | None, monitor: HttpMonitor
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.monitor = monitor
        self._tls = tls
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # On the thread of the request, since a client may be slow to shake hands.
        request.settimeout(_REQUEST_TIMEOUT_S)
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        logger.debug("a request of %s was not answered", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        headers = self.headers
        answer = self.server.monitor.answer(
            self.path, headers.get("Authorization", ""), headers.get("Cookie", "")
        )
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        )
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "dataservice"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests may have the token in their address."""
