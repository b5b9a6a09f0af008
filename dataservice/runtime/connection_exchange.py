"""The client's end of a message stream over a connection of its own.

The counterpart of `exchange.Exchange`: the same calls and errors, whatever carries the messages.
Knows what is said first, and how an exchange ends; nothing of sockets or memory. Invariant: no call
outlives its timeout.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.message import (
    HELLO_TIMEOUT_S,
    Kind,
    Message,
    Received,
    check_message,
    error_from_payload,
)
from dataservice.runtime.shared_memory import Body

__all__ = ["Connection", "ConnectionExchange"]


class Connection(Protocol):
    """One of two ends, which are alike. Thread safe.

    UnavailableError from any call means that the peer is gone or that `shut_down` was called.
    """

    @property
    def protocol(self) -> str:
        """What carries the messages."""

    @property
    def shares_memory(self) -> bool:
        """Whether bodies are read where their sender wrote them."""

    @property
    def peer_error(self) -> bytes | None:
        """The header of an ERROR as soon as one has arrived, before it is received."""

    def send(
        self,
        kind: Kind,
        header: bytes = b"",
        body: pa.Buffer | bytes | Body | None = None,
        *,
        deadline_s: float,
    ) -> None:
        """Sends one message; waits while the peer takes no more.

        DeadlineExceededError at `deadline_s` of the monotonic clock: nothing was sent then, or
        the connection is over.
        """

    def receive(self, deadline_s: float) -> Received | None:
        """The next message, None when the peer has finished sending.

        DeadlineExceededError when there was none in time; it may still come.
        """

    def await_close(self, deadline_s: float) -> None:
        """Until the peer has closed its end, dropping what it still sends."""

    def is_gone(self) -> bool:
        """Whether the peer closed its end, or this one was shut down; does not read."""

    def trust(self) -> None:
        """The peer has shown the token, and may send more than a hello."""

    def shut_down(self) -> None:
        """Ends all calls, here and at the peer, from any thread. Idempotent."""

    def close(self) -> None:
        """Frees the connection once other calls have ended; bodies received stay valid."""


class ConnectionExchange:
    """The client's end of one exchange; calls and errors are those of `exchange.Exchange`.

    Takes over `connection`; returns when the server has accepted, DeadlineExceededError after
    `timeout_s`.
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
        self._connection = connection
        self._error: DataServiceError | None = None
        self._cancelled = False
        self._ended = False
        try:
            hello = token.encode() + b"\n" + json.dumps(command).encode()
            deadline_s = time.monotonic() + timeout_s
            self._act(lambda: self._connection.send(Kind.OPEN, hello, deadline_s=deadline_s))
            accepted = self._receive(deadline_s)
            if accepted is None:
                raise UnavailableError(f"{address} ended {self._name!r} before it began")
            self._expect(Kind.OPEN, accepted)
        except BaseException:
            self.close()
            raise

    def send(
        self,
        header: bytes,
        body: pa.Buffer | bytes | Body | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Send one message.

        Waits while the server does not read, at most `timeout_s`: DeadlineExceededError, and the
        exchange is over.
        """
        check_message(header, body)
        deadline_s = time.monotonic() + timeout_s
        try:
            self._act(
                lambda: self._connection.send(Kind.MESSAGE, header, body, deadline_s=deadline_s)
            )
        except UnavailableError:
            self._raise_reason()
            raise
        if self._connection.peer_error is not None:
            raise self._keep(error_from_payload(self._connection.peer_error))

    def recv(self, timeout_s: float) -> Message | None:
        """The next message, or None when the server has ended the stream.

        DeadlineExceededError after `timeout_s`, UnavailableError when the connection broke,
        CancelledError after `cancel`, and whatever the server's handler raised.
        """
        if self._ended and self._error is None:
            return None
        received = self._receive(time.monotonic() + timeout_s)
        if received is None:
            self._ended = True
            return None
        self._expect(Kind.MESSAGE, received)
        return Message(received.header, received.body)

    def done_writing(self) -> None:
        """Tell the server that nothing more is sent; its `recv` gives None."""
        deadline_s = time.monotonic() + HELLO_TIMEOUT_S
        self._act(lambda: self._connection.send(Kind.DONE, deadline_s=deadline_s))

    def cancel(self) -> None:
        """End the exchange from any thread: calls under way raise CancelledError at once."""
        self._cancelled = True
        self._connection.shut_down()

    def close(self) -> None:
        """End the exchange, whatever its state, and free it. Idempotent, never waits for a peer.

        Batches that were received stay valid.
        """
        self.cancel()
        self._connection.close()

    def __enter__(self) -> ConnectionExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, deadline_s: float) -> Received | None:
        received: Received | None = self._act(lambda: self._connection.receive(deadline_s))
        if received is not None and received.kind is Kind.ERROR:
            raise self._keep(error_from_payload(received.header))
        return received

    def _expect(self, kind: Kind, received: Received) -> None:
        # Who accepts says nothing more: a header there is what this side has said.
        if received.kind is not kind or (kind is Kind.OPEN and received.header):
            said = f"{self._address} said {received.kind.name} where {kind.name} was expected"
            raise self._keep(DataLossError(f"{said}: it is no server of this protocol"))

    def _act(self, call: Callable[[], Any]) -> Any:
        """Calls, and makes an error the last that the exchange gives."""
        if self._error is not None:
            raise self._error
        subject = f"the exchange {self._name!r} with {self._address}"
        if self._cancelled:
            raise self._keep(CancelledError(f"{subject} was cancelled"))
        try:
            return call()
        except InvalidArgumentError:  # of the caller, who may go on
            raise
        except DataServiceError as error:
            if self._cancelled:
                raise self._keep(CancelledError(f"{subject} was cancelled")) from error
            raise self._keep(type(error)(f"{subject}: {error}")) from error

    def _raise_reason(self) -> None:
        """A send that fails only says that the stream is over; what the server said comes first."""
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
