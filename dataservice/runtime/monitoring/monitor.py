"""A read-only monitor for people and monitoring systems: a page, JSON, metrics, health, over HTTP.

Responsible for who may read what by which path. Must not know what is shown: a subject is asked at
most once a second, however many read. Invariants: nothing can be changed through it; all but
``/healthz`` asks for the token, which never travels back and is in no log.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from typing import Any, Final, Protocol, Self
from urllib.parse import parse_qs, urlsplit

from dataservice.errors import DataServiceError, FailedPreconditionError, UnimplementedError
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TlsConfig, resolve_token, tokens_equal
from dataservice.runtime.listening import check_listener, listen
from dataservice.runtime.monitoring.http_server import Answer, HttpServer, Request, text_answer
from dataservice.runtime.monitoring.metrics import Metric, exposition
from dataservice.runtime.monitoring.report import Block, as_page
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.process.forking import Origin
from dataservice.runtime.threads import wait_until

logger = logging.getLogger(__name__)

REFRESH_S: Final = 2
_FRESH_S: Final = 1.0
_HOW_TO_ENTER: Final = (
    "This asks for the token of the cluster. In a browser, add ?token=TOKEN to the address once; "
    "programs send the header Authorization: Bearer TOKEN. The token is in the file "
    "~/.local/state/dataservice/token, unless you have set DATASERVICE_TOKEN, "
    "DATASERVICE_TOKEN_FILE or token=.\n"
)


class Subject(Protocol):
    """What a monitor shows; asked for its status by one thread at a time."""

    @property
    def title(self) -> str: ...

    @property
    def is_remote(self) -> bool:
        """True if it may be gone while its monitor lives; then health asks for its status."""

    def status(self) -> dict[str, Any]:
        """Asks for the status, in JSON form; raises a DataServiceError if it cannot be had."""

    def report(self, status: dict[str, Any]) -> list[Block]:
        """Returns a status for people."""

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        """Returns a status as figures; None: it cannot be had, which is a figure too."""


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
        # Browsers send cookies to all ports of a host: a stolen one opens nothing but monitors, and
        # those of clusters with other tokens keep theirs under other names.
        self._cookie = f"dataservice_monitor_{self._digest(b'name')[:8]}"
        self._pass = self._digest(b"monitor")
        self._origin = Origin()
        self._life = threading.Lock()
        self._lock = threading.Lock()
        self._asked_s = -_FRESH_S
        self._known: dict[str, Any] | DataServiceError = {}
        self._server: HttpServer | None = None
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
        """Binds the port and serves; does nothing if it serves already.

        Raises AddressInUseError if the port is taken, InvalidArgumentError if it cannot be opened,
        FailedPreconditionError after :meth:`stop`.
        """
        with self._life:
            if self._stopped.is_set():
                raise FailedPreconditionError(
                    "a stopped monitor cannot start again; make a new one"
                )
            if self._server is None:
                context = None if self._tls is None else self._tls.server_context()
                self._server = HttpServer(listen(self._host, self._port), context, self.answer)
                self._port = self._server.server_address[1]
                end_with_program(self, lambda monitor: monitor.stop())

    def join(self) -> None:
        """Waits until :meth:`stop` is called; FailedPreconditionError before :meth:`start`."""
        if self._server is None and not self._stopped.is_set():
            raise FailedPreconditionError("there is nothing to wait for before start()")
        wait_until(self._stopped.wait)

    def stop(self) -> None:
        """Ends running requests, refuses further ones and frees the port. Idempotent."""
        if not self._origin.is_here:
            return  # a forked child leaves stopping to its parent
        with self._life:
            server, self._server = self._server, None
            if server is not None:
                server.close()
            self._stopped.set()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._stopped.is_set():
            return f"<{name}, stopped>"
        return f"<{name} {'not started' if self._server is None else f'at {self.url}'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, request: Request) -> Answer:
        """Answers a GET."""
        try:
            url = urlsplit(request.target)
        except ValueError:
            return text_answer(400, "this is not the address of a page\n")
        if url.path == "/healthz":
            return self._health()
        pages = {"/": self._page, "/status.json": self._json, "/metrics": self._metrics}
        if self._has_token(url.query):
            return self._let_in(url.path if url.path in pages else "/")
        if not self._may_read(request):
            return text_answer(401, _HOW_TO_ENTER, ("WWW-Authenticate", "Bearer"))
        if url.path not in pages:
            known = ", ".join([*pages, "/healthz"])
            return text_answer(404, f"there is no page {url.path!r}, but {known}\n")
        return pages[url.path]()

    def _digest(self, purpose: bytes) -> str:
        return hmac.digest(self._token.encode(), purpose, "sha256").hex()

    def _has_token(self, query: str) -> bool:
        # A token has no spaces, but may have a plus, which people write as it is.
        given = parse_qs(query.replace("+", "%2B")).get("token", [""])[0]
        return tokens_equal(self._token, given)

    def _may_read(self, request: Request) -> bool:
        scheme, _, given = request.authorization.partition(" ")
        if scheme.lower() == "bearer":
            return tokens_equal(self._token, given.strip())
        # Not http.cookies, which gives up if another server of the host has set an odd cookie.
        cookies = (each.strip().partition("=") for each in request.cookies.split(";"))
        given_passes = [value for name, _, value in cookies if name == self._cookie]
        return any(tokens_equal(self._pass, each) for each in given_passes)

    def _let_in(self, path: str) -> Answer:
        """Moves the right to read from the address, which browsers remember, into a cookie."""
        cookie = f"{self._cookie}={self._pass}; HttpOnly; SameSite=Strict; Path=/"
        if self._tls is not None:
            cookie += "; Secure"
        return Answer(303, "text/plain", b"", (("Set-Cookie", cookie), ("Location", path)))

    def _health(self) -> Answer:
        try:
            if self._subject.is_remote:
                self._status()
        except DataServiceError as error:
            # Not the message, which may name hosts and files: whoever asks has shown no token.
            return text_answer(503, f"{type(error).__name__}\n")
        return text_answer(200, "ok\n")

    def _page(self) -> Answer:
        try:
            blocks, code = self._subject.report(self._status()), 200
        except DataServiceError as error:
            blocks, code = [str(error)], 503
        page = as_page(self._subject.title, blocks, refresh_s=REFRESH_S)
        return Answer(code, "text/html; charset=utf-8", page.encode())

    def _json(self) -> Answer:
        try:
            value, code = self._status(), 200
        except DataServiceError as error:
            value, code = {"error": str(error)}, 503
        return Answer(code, "application/json", json.dumps(value).encode())

    def _metrics(self) -> Answer:
        status: dict[str, Any] | None
        try:
            status = self._status()
        except DataServiceError:
            status = None
        try:
            return Answer(200, *exposition(self._subject.metrics(status)))
        except UnimplementedError as error:
            return text_answer(501, f"{error}\n")

    def _status(self) -> dict[str, Any]:
        """Returns the subject's status, at most a second old; raises what asking for it raised."""
        with self._lock:
            if time.monotonic() - self._asked_s >= _FRESH_S:
                try:
                    self._known = self._subject.status()
                except DataServiceError as error:
                    if not isinstance(self._known, DataServiceError):
                        logger.warning("%s gives no status: %s", self._subject.title, error)
                    self._known = error
                self._asked_s = time.monotonic()
            known = self._known
        if isinstance(known, DataServiceError):
            raise known
        return known
