"""The client's end of a message stream from a process of its user on its host.

The counterpart of `exchange.Exchange`, over shared memory: the same calls and errors, faster by
what copying through a network stack costs. Invariant: no call outlives its timeout.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.local_address import HELLO_TIMEOUT_S
from dataservice.runtime.local_connection import LocalConnection, Received
from dataservice.runtime.local_messages import Kind
from dataservice.runtime.message import Message, check_message, error_from_payload
from dataservice.runtime.shared_memory import Body

__all__ = ["LocalExchange"]


class LocalExchange:
    """The client's end of one exchange; calls and errors are those of `exchange.Exchange`.

    Takes over `sock` from `dial`; returns when the server has accepted.
    """

    protocol: ClassVar[str] = "shared_memory"
    shares_memory: ClassVar[bool] = True

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        command: Mapping[str, Any],
        *,
        token: str,
        timeout_s: float,
    ) -> None:
        self._address = address
        self._name = str(command.get("exchange"))
        self._connection = LocalConnection(sock)
        self._error: DataServiceError | None = None
        self._cancelled = False
        self._ended = False
        try:
            hello = token.encode() + b"\n" + json.dumps(command).encode()
            deadline_s = time.monotonic() + timeout_s
            self._act(lambda: self._connection.send(Kind.OPEN, hello, deadline_s=deadline_s))
            if self._receive(deadline_s) is None:
                raise UnavailableError(f"{address} ended {self._name!r} before it began")
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

    def __enter__(self) -> LocalExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, deadline_s: float) -> Received | None:
        received: Received | None = self._act(lambda: self._connection.receive(deadline_s))
        if received is not None and received.kind is Kind.ERROR:
            raise self._keep(error_from_payload(received.header))
        return received

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
