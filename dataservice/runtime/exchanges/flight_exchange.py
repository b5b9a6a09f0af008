"""Both ends of a message stream over a Flight exchange.

Responsible for deadlines, cancellation and the translation of errors. Knows neither the meaning nor
the layout of headers and bodies, and does not open connections. Invariant: no call of the client's
end outlives its time-out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.exchanges.flight_messages import CONTROL, SCHEMA, unpack, write
from dataservice.runtime.exchanges.message import Message, error_from_payload, error_payload
from dataservice.runtime.exchanges.severing import sever_connections, sever_connections_to
from dataservice.runtime.exchanges.watchdog import Watchdog

logger = logging.getLogger(__name__)

TRANSPORT_ERRORS = (pa.ArrowException, OSError)
_CANCEL_GRACE_S = 0.3


def _severing(writing: threading.Lock, address: str) -> Callable[[], None]:
    """Returns a callback that severs the connection if a write is in progress.

    gRPC cannot cancel a write to a frozen peer that is blocked by a full TCP connection.
    """

    def sever() -> None:
        if writing.locked():
            sever_connections_to(address)

    return sever


class FlightChannel:
    """The server's end of one exchange, given to its handler.

    One thread may receive while another sends; sends from several threads are serialized. A
    `CancelledError` from either means that the client is gone or the server stops; the handler
    should let it propagate. The exchange ends when the handler returns.
    """

    shares_memory: ClassVar[bool] = False

    def __init__(
        self,
        context: Any,
        reader: Any,
        writer: Any,
        *,
        server_port: int,
        stopping: threading.Event,
    ) -> None:
        self.peer: str = context.peer()
        self.idle = False
        self._context = context
        self._reader = reader
        self._writer = writer
        self._server_port = server_port
        self._stopping = stopping
        self._send_lock = threading.Lock()

    def recv(self) -> Message | None:
        """Returns the next message, or None when the client has finished sending.

        Waits as long as the client stays connected and the server runs; `abort` ends the wait.
        """
        self.idle = True
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            if self._context.is_cancelled():
                raise CancelledError(f"the client at {self.peer} cancelled") from None
            return None
        except TRANSPORT_ERRORS as error:
            raise CancelledError(f"the client at {self.peer} is gone: {error}") from error
        finally:
            self.idle = False
        message, is_control = unpack(chunk)
        if is_control:
            raise InvalidArgumentError("a client sent a control message")
        return message

    def send(self, header: bytes, body: pa.Buffer | bytes | None = None) -> None:
        """Sends one message; waits while the client does not read."""
        with self._send_lock:
            try:
                write(self._writer, header, body)
            except TRANSPORT_ERRORS as error:
                raise CancelledError(f"the client at {self.peer} is gone: {error}") from error

    def cancelled(self) -> bool:
        """True if the client cancelled or is gone, or the server is stopping."""
        return self._stopping.is_set() or bool(self._context.is_cancelled())

    def abort(self) -> None:
        """Cuts the client's connection, with all its exchanges; from any thread.

        For a client that is known to be dead although its host keeps the connection open.
        """
        port = self.peer.rpartition(":")[2]
        if port.isdigit():
            sever_connections(self._server_port, int(port))

    def open(self) -> None:
        """Sends the greeting, which tells the client that its token was accepted."""
        self._writer.begin(SCHEMA)
        self._writer.write_with_metadata(CONTROL, b"")

    def fail(self, error: BaseException) -> None:
        """Tells the client which error ended the exchange."""
        try:
            with self._send_lock:
                self._writer.write_with_metadata(CONTROL, error_payload(error))
        except TRANSPORT_ERRORS as lost:
            logger.debug("the client at %s is gone, it misses the error: %s", self.peer, lost)


class FlightExchange:
    """The client's end of one exchange.

    One thread may receive while another sends. After any error the exchange is over: every later
    call raises that error again.
    """

    protocol: ClassVar[str] = "flight"
    shares_memory: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        writer: Any,
        reader: Any,
        address: str,
        translate: Callable[[Exception, str], DataServiceError],
    ) -> None:
        self._address = address
        self._translate = translate
        self._name = name
        self._writer = writer
        self._reader = reader
        self._send_lock = threading.Lock()
        self._recv_lock = threading.Lock()
        self._send_deadline = Watchdog.shared().deadline(reader.cancel)
        self._recv_deadline = Watchdog.shared().deadline(reader.cancel)
        self._sever_deadline = Watchdog.shared().deadline(_severing(self._send_lock, address))
        self._error: DataServiceError | None = None
        self._cancelled = False
        # The first send begins writing, not the constructor: a write on a stream that the server
        # has ended already makes Flight discard what the server sent.
        self._begun = False
        self._ended = False

    def send(
        self, header: bytes, body: pa.Buffer | bytes | None = None, *, timeout_s: float = 30.0
    ) -> None:
        """Sends one message; waits while the server does not read.

        After `timeout_s` raises DeadlineExceededError, and the exchange is over.
        """
        with self._send_lock:
            self._check()
            self._send_deadline.arm(timeout_s)
            self._sever_deadline.arm(timeout_s + _CANCEL_GRACE_S)
            try:
                if not self._begun:
                    self._begun = True
                    self._writer.begin(SCHEMA)
                write(self._writer, header, body)
            except TRANSPORT_ERRORS as error:
                raise self._send_failed(error) from error
            finally:
                self._send_deadline.disarm()
                self._sever_deadline.disarm()

    def recv(self, timeout_s: float) -> Message | None:
        """Returns the next message, or None when the server has ended the stream.

        Raises DeadlineExceededError after `timeout_s`, UnavailableError if the connection broke,
        CancelledError after `cancel`, and whatever the server's handler raised.
        """
        with self._recv_lock:
            self._check()
            if self._ended:
                return None
            self._recv_deadline.arm(timeout_s)
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                self._end_of_stream()
                return None
            except TRANSPORT_ERRORS as error:
                raise self._failed(error) from error
            finally:
                self._recv_deadline.disarm()
            message, is_control = unpack(chunk)
            if is_control and message.header:
                raise self._keep(error_from_payload(message.header))
            return message

    def done_writing(self) -> None:
        """Tells the server that nothing more will be sent; its `recv` then returns None."""
        with self._send_lock:
            self._check()
            try:
                self._writer.done_writing()
            except TRANSPORT_ERRORS as error:
                raise self._send_failed(error) from error

    def cancel(self) -> None:
        """Ends the exchange, from any thread; calls in progress raise CancelledError at once."""
        self._cancelled = True
        self._reader.cancel()
        if self._send_lock.locked():
            self._sever_deadline.arm(_CANCEL_GRACE_S)

    def close(self) -> None:
        """Ends the exchange in any state and frees it. Idempotent; never waits for the peer.

        To let the server finish, call `done_writing` and receive until None first.
        """
        self.cancel()
        with self._send_lock, self._recv_lock:
            self._sever_deadline.arm(_CANCEL_GRACE_S)
            try:
                self._writer.close()
            except TRANSPORT_ERRORS as error:
                logger.debug("closed the exchange %r: %s", self._name, error)
            finally:
                self._sever_deadline.disarm()

    def __enter__(self) -> FlightExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, timeout_s: float) -> None:
        """Waits for the server's greeting."""
        if self.recv(timeout_s) is None:
            raise UnavailableError(f"{self._address} ended {self._name!r} before it began")

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._cancelled:
            raise CancelledError(f"the exchange {self._name!r} with {self._address} was cancelled")

    def _end_of_stream(self) -> None:
        if self._cancelled or self._recv_deadline.expired:
            raise self._failed(None)
        self._ended = True

    def _send_failed(self, error: Exception) -> DataServiceError:
        """Returns the error of a failed write: the reason that the reading side knows, if any.

        A failed write by itself only tells that the stream is over.
        """
        if not (self._cancelled or self._send_deadline.expired) and self._error is None:
            try:
                while self.recv(1.0) is not None:
                    pass
            except DataServiceError as reason:
                return reason
        return self._failed(error)

    def _failed(self, error: Exception | None) -> DataServiceError:
        if self._error is not None:
            return self._error
        subject = f"the exchange {self._name!r} with {self._address}"
        if self._cancelled:
            return self._keep(CancelledError(f"{subject} was cancelled"))
        # Whichever side's deadline ended the stream, both sides fail for that reason.
        for side, deadline in (("recv", self._recv_deadline), ("send", self._send_deadline)):
            if deadline.expired:
                return self._keep(
                    DeadlineExceededError(
                        f"{subject}: {side} took longer than {deadline.timeout_s:.3g} s"
                    )
                )
        if error is None:
            return self._keep(UnavailableError(f"{subject} ended"))
        return self._keep(self._translate(error, self._address))

    def _keep(self, error: DataServiceError) -> DataServiceError:
        self._error = error
        return error
