"""Servers and clients of message streams over Arrow Flight.

The only importer of `pyarrow.flight`. Responsible for finding handlers, checking the token and
mapping errors. Knows nothing of what travels in a stream: see `flight_exchange`.

Invariant: no client call outlives its time-out, and `FlightServer.stop` is bounded in time,
whatever its clients and handlers do.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from dataservice.config import RECONNECT_BACKOFF_MAX_MS, RECONNECT_BACKOFF_MIN_MS
from dataservice.errors import (
    AddressInUseError,
    CancelledError,
    DataLossError,
    DataServiceError,
    DeadlineExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TOKEN_METADATA_KEY, WRONG_TOKEN, TlsConfig, tokens_equal
from dataservice.runtime.exchanges.flight_exchange import (
    TRANSPORT_ERRORS,
    FlightChannel,
    FlightExchange,
)
from dataservice.runtime.exchanges.message import error_from_payload, error_payload, find_handler
from dataservice.runtime.exchanges.severing import sever_connections
from dataservice.runtime.process.forking import left_to_parent
from dataservice.runtime.tls_probe import explained

logger = logging.getLogger(__name__)

_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # A server that returns after any absence is found within a second, instead of two minutes.
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_BACKOFF_MIN_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MAX_MS),
)
_STATUS_MAX_CHARS = 500  # gRPC limits all trailers of a call to 8 KiB
_PING = "ping"
_PONG = b"\x00"

ExchangeHandler = Callable[[dict[str, Any], FlightChannel], None]


def _as_service_error(error: Exception, address: str) -> DataServiceError:
    """Returns the service error that corresponds to an error raised by Flight on a client."""
    if isinstance(error, fl.FlightError) and error.extra_info:
        return error_from_payload(error.extra_info)
    detail = str(error).partition(". gRPC client debug context")[0].strip()
    if isinstance(error, fl.FlightUnauthenticatedError):
        return UnauthenticatedError(f"{address} refused the call: {WRONG_TOKEN}")
    if isinstance(error, fl.FlightTimedOutError):
        return DeadlineExceededError(f"no answer from {address} in time: {detail}")
    if isinstance(error, pa.ArrowInvalid):
        return DataLossError(f"{address} sent bytes that cannot be read: {detail}")
    if isinstance(error, fl.FlightInternalError | fl.FlightServerError | pa.ArrowCancelled):
        # A stream that is reset by a dying peer ends with any of these, depending on the moment.
        return UnavailableError(f"the connection to {address} broke: {detail}")
    return UnavailableError(f"{address} cannot be reached: {detail}")


def _location(address: str, tls: TlsConfig | None) -> str:
    return f"{'grpc' if tls is None else 'grpc+tls'}://{address}"


class _TokenCheck(fl.ServerMiddlewareFactory):
    """A middleware that refuses every Flight method without the server's token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> None:  # noqa: ARG002
        given = headers.get(TOKEN_METADATA_KEY) or [None]
        if not tokens_equal(self._token, given[0]):
            raise fl.FlightUnauthenticatedError("missing or wrong token")


class _Service(fl.FlightServerBase):
    """A Flight service that passes Flight's methods on to the handlers of a FlightServer."""

    def __init__(self, owner: FlightServer, location: str, token: str, certificates: Any) -> None:
        self._owner = owner
        super().__init__(
            location, middleware={"token": _TokenCheck(token)}, tls_certificates=certificates
        )

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._owner.serving(context, reader, writer) as channel:
            try:
                channel.open()
                handler, command = find_handler(self._owner.exchanges, descriptor.command)
                handler(command, channel)
            except DataServiceError as error:
                if isinstance(error, CancelledError) and channel.cancelled():
                    logger.debug("exchange ended: %s", error)
                    return
                self._refuse(channel, error)
            except Exception as error:
                logger.exception("an exchange with %s failed", channel.peer)
                self._refuse(channel, error)

    def _refuse(self, channel: FlightChannel, error: Exception) -> None:
        """Reports an error twice: in full as a message, and shortened in the final status.

        A client that is sending when the stream ends sees only the status.
        """
        channel.fail(error)
        raise fl.FlightServerError("handler failed", error_payload(error, _STATUS_MAX_CHARS))

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:  # noqa: ARG002
        # A ping, the only action.
        return iter([_PONG])


class FlightServer:
    """A server of named exchanges on one port. Handlers run on Flight's own threads.

    Each open exchange occupies one thread. `port` 0 chooses a free port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        tls: TlsConfig | None = None,
        exchanges: Mapping[str, ExchangeHandler],
    ) -> None:
        self.exchanges = dict(exchanges)
        self._host = host
        self._port = port
        self._token = token
        self._tls = tls
        self._service: _Service | None = None
        self._channels: set[FlightChannel] = set()
        self._changed = threading.Condition()
        self._stopping = threading.Event()

    @property
    def port(self) -> int:
        """The bound port, once started."""
        return self._port

    @property
    def address(self) -> str:
        """The server's address, as `host:port`."""
        return format_address(self._host, self._port)

    def start(self) -> FlightServer:
        """Binds the port and serves; raises AddressInUseError if the port is taken."""
        certificates = None
        if self._tls is not None:
            key, chain = self._tls.read_server_pair()
            certificates = [(chain, key)]
        location = _location(self.address, self._tls)
        try:
            self._service = left_to_parent(_Service(self, location, self._token, certificates))
        except TRANSPORT_ERRORS as error:
            raise AddressInUseError(
                f"port {self._port} on {self._host} cannot be served ({error}); it is likely "
                "already in use: choose another --port, or 0 for a free one"
            ) from error
        self._port = self._service.port
        return self

    def stop(self, grace_s: float = 0.5, timeout_s: float = 5.0) -> None:
        """Refuses new calls, lets busy handlers finish for `grace_s`, then cuts connections.

        Idempotent and bounded by `timeout_s`; the port is free afterwards. A handler that waits
        in `recv` is not busy.
        """
        with self._changed:
            service, self._service = self._service, None
            self._stopping.set()
        if service is None:
            return
        closing = threading.Thread(target=service.shutdown, name="flight-stop", daemon=True)
        closing.start()
        give_up_s = time.monotonic() + grace_s
        while time.monotonic() < give_up_s and any(not c.idle for c in tuple(self._channels)):
            with self._changed:
                self._changed.wait(0.01)
        give_up_s = time.monotonic() + timeout_s - grace_s
        while closing.is_alive() and time.monotonic() < give_up_s:
            sever_connections(self._port)
            closing.join(0.05)
        if closing.is_alive():
            logger.warning("%d exchanges of %s have not ended", len(self._channels), self.address)

    @contextmanager
    def serving(self, context: Any, reader: Any, writer: Any) -> Iterator[FlightChannel]:
        """Yields the channel of a new exchange, which counts as open inside the context."""
        channel = FlightChannel(
            context, reader, writer, server_port=self._port, stopping=self._stopping
        )
        with self._changed:
            self._channels.add(channel)
        try:
            yield channel
        finally:
            with self._changed:
                self._channels.discard(channel)
                self._changed.notify_all()


class FlightClient:
    """A connection to one FlightServer. Thread safe; connects on first use."""

    def __init__(self, address: str, *, token: str, tls: TlsConfig | None = None) -> None:
        self.address = address
        self._tls = tls
        self._was_answered = False
        self._headers = [(TOKEN_METADATA_KEY.encode(), token.encode())]
        options: dict[str, Any] = {"generic_options": list(_CHANNEL_OPTIONS)}
        if tls is not None:
            options["tls_root_certs"] = tls.read_roots()
        self._client = left_to_parent(fl.FlightClient(_location(address, tls), **options))

    def exchange(self, command: Mapping[str, Any], *, timeout_s: float = 10.0) -> FlightExchange:
        """Opens the exchange that `command["exchange"]` names.

        Returns when the server has accepted it; raises the error with which the server refused it.
        """
        give_up_s = time.monotonic() + timeout_s
        # Flight sends the command while it opens the stream, for which no deadline can be set. So a
        # call with a deadline goes first; once that is answered, there is a working connection.
        self.ping(timeout_s=timeout_s)
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command).encode())
        call = fl.FlightCallOptions(headers=self._headers)
        name = str(command.get("exchange"))
        try:
            writer, reader = map(left_to_parent, self._client.do_exchange(descriptor, call))
        except TRANSPORT_ERRORS as error:
            raise _as_service_error(error, self.address) from error
        exchange = FlightExchange(name, writer, reader, self.address, _as_service_error)
        try:
            exchange.open(max(give_up_s - time.monotonic(), 0.001))
        except BaseException:
            exchange.close()
            raise
        return exchange

    def ping(self, *, timeout_s: float) -> None:
        """Waits for an answer of the server; raises the reason why there is none."""
        call = fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        try:
            list(self._client.do_action(fl.Action(_PING, b""), call))
        except TRANSPORT_ERRORS as error:
            failure = _as_service_error(error, self.address)
            if isinstance(failure, UnavailableError) and not self._was_answered:
                ca_path = None if self._tls is None else self._tls.ca_path
                by_tls = self._tls is not None
                failure = explained(failure, self.address, by_tls=by_tls, ca_path=ca_path)
            raise failure from error
        self._was_answered = True

    def close(self) -> None:
        """Closes the connection; open exchanges end with UnavailableError. Idempotent."""
        self._client.close()
