"""The server's end of one message stream, and what a server has to do with it.

Responsible for reading the client's command and for telling the client how the exchange ended.
Knows no threads, no memory, and no details of the sockets. Invariant: no client without the token
learns whether a handler exists.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from dataservice.runtime.auth import WRONG_TOKEN, tokens_equal
from dataservice.runtime.exchanges.bodies import AnyBody
from dataservice.runtime.exchanges.connection_exchange import Connection
from dataservice.runtime.exchanges.message import (
    HELLO_TIMEOUT_S,
    Kind,
    Message,
    check_message,
    error_payload,
    find_handler,
)

logger = logging.getLogger(__name__)

# The time that a client has to receive how an exchange ended.
_LINGER_S: Final = 2.0
# The interval at which a thread checks whether a connection that could not rest may do so now.
_UNREST_S: Final = 1.0


class ConnectionChannel:
    """The server's end of one exchange, given to its handler; see `FlightChannel`."""

    def __init__(self, connection: Connection, stopping: threading.Event, peer: str) -> None:
        self.peer = peer
        self.shares_memory = connection.shares_memory
        self.idle = False
        self._connection = connection
        self._stopping = stopping
        self._awaited: list[Message | None] = []
        self._scope = contextlib.ExitStack()
        self.requests: Requests | None = None

    def serve(self, requests: Requests) -> None:
        """Makes this an exchange of requests and replies."""
        self._scope.enter_context(requests.present)
        self.requests = requests

    def fileno(self) -> int:
        return self._connection.fileno()

    def await_request(self, deadline_s: float) -> bool:
        """Receives what the next `recv` returns; False if nothing arrived by the deadline.

        After False no thread has to wait for the client.
        """
        while True:
            try:
                self._awaited.append(self._receive(deadline_s))
                return True
            except DeadlineExceededError:
                if self._connection.may_rest:
                    return False
                deadline_s = time.monotonic() + _UNREST_S

    def recv(self) -> Message | None:
        return self._awaited.pop() if self._awaited else self._receive(math.inf)

    def _receive(self, deadline_s: float) -> Message | None:
        if self._stopping.is_set():
            raise CancelledError("the server stops")
        self.idle = True
        try:
            received = self._connection.receive(deadline_s)
        except UnavailableError as error:
            raise self._gone(error) from error
        finally:
            self.idle = False
        if received is None:
            return None
        if received.kind is not Kind.MESSAGE:
            raise InvalidArgumentError(f"a client sent a message of kind {received.kind.name}")
        return Message(received.header, received.body)

    def send(self, header: bytes, body: AnyBody | None = None) -> None:
        """Sends one message; waits while the client does not read, or holds on to what it got."""
        check_message(header, body)
        try:
            self._connection.send(Kind.MESSAGE, header, body, deadline_s=math.inf)
        except UnavailableError as error:
            raise self._gone(error) from error

    def cancelled(self) -> bool:
        return self._stopping.is_set() or self._connection.is_gone()

    def abort(self) -> None:
        self._connection.shut_down()

    def fail(self, error: BaseException) -> None:
        self._finish(Kind.ERROR, error_payload(error))

    def done(self) -> None:
        """Tells the client that the handler has ended."""
        self._finish(Kind.DONE, b"")

    def greet(
        self, token: str, exchanges: Mapping[str, AnyHandler], address: str
    ) -> tuple[AnyHandler, dict[str, Any]]:
        """Checks the client's token, finds the handler of its command, accepts the exchange."""
        hello = self._connection.receive(time.monotonic() + HELLO_TIMEOUT_S)
        if hello is None or hello.kind is not Kind.OPEN:
            raise InvalidArgumentError("a client did not begin with what it wants")
        shown, _, command = hello.header.partition(b"\n")
        if not tokens_equal(token, shown.decode(errors="replace")):
            raise UnauthenticatedError(f"{address} refused the call: {WRONG_TOKEN}")
        self._connection.trust()
        found = find_handler(exchanges, command)
        self._connection.send(Kind.OPEN, deadline_s=time.monotonic() + HELLO_TIMEOUT_S)
        return found

    def close(self) -> None:
        """Frees the connection; whoever uses it must have ended."""
        self._connection.close()
        self._scope.close()

    def _finish(self, kind: Kind, payload: bytes) -> None:
        until_s = time.monotonic() + _LINGER_S
        try:
            self._connection.send(kind, payload, deadline_s=until_s)
            self._connection.await_close(until_s)
        except DataServiceError as lost:
            logger.debug("the client at %s is gone, it misses the end: %s", self.peer, lost)

    def _gone(self, error: UnavailableError) -> CancelledError:
        return CancelledError(f"the client at {self.peer} is gone: {error}")


ChannelHandler = Callable[[dict[str, Any], ConnectionChannel], None]


class Requests(NamedTuple):
    """An exchange in which each request of the client has one reply.

    `answer` receives one request and sends the reply; it returns False at the end of the stream.
    `present` is entered as long as the exchange is open. Other handlers have a thread all that
    time; this one only from a request to its reply.
    """

    answer: Callable[[ConnectionChannel], bool]
    present: AbstractContextManager[object]


AnyHandler = ChannelHandler | Requests
