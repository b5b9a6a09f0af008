"""The client's end of a message stream over a connection of its own.

Responsible for the opening and the end of an exchange, with the calls and errors of
`FlightExchange`. Knows no sockets and no memory, only the `Connection` protocol. Invariant: no
call outlives its time-out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.exchanges.bodies import AnyBody
from dataservice.runtime.exchanges.message import (
    HELLO_TIMEOUT_S,
    Kind,
    Message,
    Received,
    check_message,
    error_from_payload,
)


class Connection(Protocol):
    """One end of a connection; both ends behave alike. Thread safe.

    Any call raises UnavailableError if the peer is gone or `shut_down` was called, `receive` only
    after the messages that had arrived.
    """

    @property
    def protocol(self) -> str:
        """The name of the protocol that carries the messages."""

    @property
    def shares_memory(self) -> bool:
        """True if bodies are read in the memory into which their sender wrote them."""

    @property
    def peer_error(self) -> bytes | None:
        """The header of an ERROR packet that has arrived, even before `receive` returns it."""

    def send(
        self,
        kind: Kind,
        header: bytes = b"",
        body: AnyBody | None = None,
        *,
        deadline_s: float,
    ) -> None:
        """Sends one message; waits while the peer accepts no more.

        Raises DeadlineExceededError at `deadline_s` (monotonic clock). Then either nothing was
        sent, or the connection is over.
        """

    def receive(self, deadline_s: float) -> Received | None:
        """Returns the next message, None when the peer has finished sending.

        Raises DeadlineExceededError if none arrived in time; a later call may still receive it.
        """

    @property
    def may_rest(self) -> bool:
        """False after `receive` timed out if a thread has to go on with it all the same.

        A part of a message has arrived, or something is owed to the peer. If True, nobody needs to
        call `receive` until the descriptor is readable.
        """

    def fileno(self) -> int:
        """Returns the descriptor that is readable once more has arrived."""

    def await_close(self, deadline_s: float) -> None:
        """Waits until the peer has closed its end, and drops what the peer still sends.

        Closing this end while data lies unread would also discard what the peer has not read yet.
        """

    def is_gone(self) -> bool:
        """True if the peer closed its end, or this end was shut down; does not read."""

    def trust(self) -> None:
        """Notes that the peer has shown the token, so that it may send more than a hello."""

    def shut_down(self) -> None:
        """Ends all calls, here and at the peer, from any thread. Idempotent."""

    def close(self) -> None:
        """Frees the connection once other calls have ended; bodies received stay valid."""


class ConnectionExchange:
    """The client's end of one exchange; calls and errors are those of `FlightExchange`.

    Owns `connection` from then on. The constructor returns when the server has accepted the
    exchange, and raises DeadlineExceededError after `timeout_s`.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        command: Mapping[str, Any],
        *,
        token: str,
        timeout_s: float,
    ) -> None:
        self.protocol = connection.protocol
        self.shares_memory = connection.shares_memory
        self._address = address
        self._name = str(command.get("name", command.get("exchange")))
        self._subject = f"the exchange {self._name!r} with {address}"
        self._connection = connection
        self._error: DataServiceError | None = None
        self._cancelled = False
        self._ended = False
        try:
            hello = token.encode() + b"\n" + json.dumps(command).encode()
            deadline_s = time.monotonic() + timeout_s
            self._send(Kind.OPEN, hello, None, deadline_s)
            accepted = self._receive(deadline_s)
            if accepted is None:
                raise UnavailableError(f"{address} ended {self._name!r} before it began")
            # An accepting server sends no header. One with a header is this side's own hello,
            # echoed by a peer that is no server of this protocol.
            if accepted.kind is not Kind.OPEN or accepted.header:
                raise self._unexpected(accepted, Kind.OPEN)
        except BaseException:
            self.close()
            raise

    def send(
        self,
        header: bytes,
        body: AnyBody | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        check_message(header, body)
        try:
            self._send(Kind.MESSAGE, header, body, time.monotonic() + timeout_s)
        except UnavailableError:
            self._raise_reason()
            raise
        if self._connection.peer_error is not None:
            raise self._keep(error_from_payload(self._connection.peer_error))

    def recv(self, timeout_s: float) -> Message | None:
        if self._ended and self._error is None:
            return None
        received = self._receive(time.monotonic() + timeout_s)
        if received is None:
            self._ended = True
            return None
        if received.kind is not Kind.MESSAGE:
            raise self._unexpected(received, Kind.MESSAGE)
        return Message(received.header, received.body)

    def done_writing(self) -> None:
        self._send(Kind.DONE, b"", None, time.monotonic() + HELLO_TIMEOUT_S)

    def cancel(self) -> None:
        self._cancelled = True
        self._connection.shut_down()

    def close(self) -> None:
        self.cancel()
        self._connection.close()

    def __enter__(self) -> ConnectionExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, kind: Kind, header: bytes, body: Any, deadline_s: float) -> None:
        self._check_open()
        try:
            self._connection.send(kind, header, body, deadline_s=deadline_s)
        except InvalidArgumentError:  # a mistake of the caller, who may go on
            raise
        except DataServiceError as error:
            raise self._ended_by(error) from error

    def _receive(self, deadline_s: float) -> Received | None:
        self._check_open()
        try:
            received = self._connection.receive(deadline_s)
        except InvalidArgumentError:  # a mistake of the caller, who may go on
            raise
        except DataServiceError as error:
            raise self._ended_by(error) from error
        if received is not None and received.kind is Kind.ERROR:
            raise self._keep(error_from_payload(received.header))
        return received

    def _unexpected(self, received: Received, wanted: Kind) -> DataServiceError:
        said = f"{self._address} said {received.kind.name} where {wanted.name} was expected"
        return self._keep(DataLossError(f"{said}: it is not a server of this protocol"))

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._cancelled:
            raise self._keep(CancelledError(f"{self._subject} was cancelled"))

    def _ended_by(self, error: DataServiceError) -> DataServiceError:
        """Ends the exchange with an error, and returns what this and later calls raise."""
        if self._cancelled:
            return self._keep(CancelledError(f"{self._subject} was cancelled"))
        return self._keep(type(error)(f"{self._subject}: {error}"))

    def _raise_reason(self) -> None:
        """Raises the error that the server had sent before a send failed, if there was one.

        A failed send by itself only tells that the stream is over.
        """
        lost, self._error = self._error, None
        try:
            while self._receive(time.monotonic() + 1.0) is not None:
                pass
        except UnavailableError:
            self._error = lost

    def _keep(self, error: DataServiceError) -> DataServiceError:
        if self._error is None:
            self._error = error
            self._connection.shut_down()
        return self._error
