"""Serves message streams over connections of their own, for any transport.

The counterpart of `flight.FlightServer`, with the same handlers and errors. Responsible for
accepting clients, for reading their commands and for telling them how the exchange ended. Knows no
memory, and no details of the sockets. Invariants: no client without the token reaches a handler,
and `ConnectionServer.stop` is bounded in time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dataservice.errors import (
    CancelledError,
    DataServiceError,
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
from dataservice.runtime.threads import end_threads

logger = logging.getLogger(__name__)

# The time that a client has to receive how an exchange ended.
_LINGER_S: Final = 2.0
# The interval at which a listener checks whether it was stopped, in case a wake-up got lost.
_RECHECK_S: Final = 1.0


class ConnectionChannel:
    """The server's end of one exchange, given to its handler; see `FlightChannel`."""

    def __init__(self, connection: Connection, stopping: threading.Event, peer: str) -> None:
        self.peer = peer
        self.shares_memory = connection.shares_memory
        self.idle = False
        self._connection = connection
        self._stopping = stopping

    def recv(self) -> Message | None:
        if self._stopping.is_set():
            raise CancelledError("the server stops")
        self.idle = True
        try:
            received = self._connection.receive(math.inf)
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


class ConnectionServer:
    """The base of servers of named exchanges, with a thread per open exchange.

    Subclasses decide where to listen and which clients to admit.
    """

    def __init__(self, *, token: str, exchanges: Mapping[str, ChannelHandler]) -> None:
        self._token = token
        self._exchanges = dict(exchanges)
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._open: dict[ConnectionChannel, threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The address by which clients know the server."""
        raise NotImplementedError

    def _admit(self, sock: socket.socket) -> tuple[Connection, str] | None:
        """Returns a client's connection and name, None for one that is refused; never waits.

        Takes ownership of `sock`.
        """
        raise NotImplementedError

    def _listen(self, listener: socket.socket) -> None:
        """Starts to serve the clients that connect to `listener`; takes ownership of it."""
        listener.settimeout(_RECHECK_S)
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener,), name=f"listen-{self.address}", daemon=True
        )
        self._accepting.start()

    def stop(self, grace_s: float = 0.5, timeout_s: float = 5.0) -> None:
        """Refuses new clients, lets busy handlers finish for `grace_s`, then cuts connections.

        Idempotent and bounded by `timeout_s`; the listener is closed afterwards. A handler that
        waits in `recv` is not busy.
        """
        self._stopping.set()
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is None:
            return
        deadline_s = time.monotonic() + timeout_s
        # Ends the wait for clients at once on Linux, also if a forked child holds the listener too.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        if self._accepting is not None:
            self._accepting.join(timeout_s)
        listener.close()
        with self._lock:
            serving = dict(self._open)
        for channel in serving:
            if channel.idle:
                channel.abort()
        late = end_threads(serving, ConnectionChannel.abort, grace_s=grace_s, deadline_s=deadline_s)
        if late:
            logger.warning("%d exchanges of %s have not ended", late, self.address)

    def _accept(self, listener: socket.socket) -> None:
        # Polls before `accept`: on a Unix socket that was shut down, `accept` spins until its
        # time-out, since the kernel reports a waiting client and then none.
        clients = select.poll()
        clients.register(listener, select.POLLIN)
        while not self._stopping.is_set():
            if not clients.poll(_RECHECK_S * 1_000) or self._stopping.is_set():
                continue
            try:
                sock, _ = listener.accept()
            except (TimeoutError, ConnectionAbortedError):
                continue
            except OSError as error:
                if self._stopping.is_set():
                    return
                # Most likely out of file descriptors; waiting clients are served once some are free
                # again.
                logger.warning("%s cannot accept a client: %s", self.address, error)
                self._stopping.wait(_RECHECK_S)
                continue
            if self._stopping.is_set():
                sock.close()
            else:
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        admitted = self._admit(sock)
        if admitted is None:
            return
        connection, peer = admitted
        channel = ConnectionChannel(connection, self._stopping, peer)
        thread = threading.Thread(
            target=self._serve,
            args=(connection, channel),
            name=f"exchange-{self.address}",
            daemon=True,
        )
        with self._lock:
            self._open[channel] = thread
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit of threads; the client may retry
            logger.warning("%s cannot serve %s: %s", self.address, peer, error)
            self._end(connection, channel)

    def _end(self, connection: Connection, channel: ConnectionChannel) -> None:
        connection.close()
        with self._lock:
            self._open.pop(channel, None)

    def _serve(self, connection: Connection, channel: ConnectionChannel) -> None:
        try:
            self._converse(connection, channel)
        except DataServiceError as error:
            if isinstance(error, CancelledError | UnavailableError) and channel.cancelled():
                logger.debug("exchange ended: %s", error)
            else:
                channel.fail(error)
        except Exception as error:
            logger.exception("an exchange with %s failed", channel.peer)
            channel.fail(error)
        finally:
            self._end(connection, channel)

    def _converse(self, connection: Connection, channel: ConnectionChannel) -> None:
        handler, command = self._greet(connection)
        handler(command, channel)
        channel.done()

    def _greet(self, connection: Connection) -> tuple[ChannelHandler, dict[str, Any]]:
        """Checks a client's token, finds the handler of its command, and accepts the exchange."""
        hello = connection.receive(time.monotonic() + HELLO_TIMEOUT_S)
        if hello is None or hello.kind is not Kind.OPEN:
            raise InvalidArgumentError("a client did not begin with what it wants")
        token, _, command = hello.header.partition(b"\n")
        if not tokens_equal(self._token, token.decode(errors="replace")):
            raise UnauthenticatedError(f"{self.address} refused the call: {WRONG_TOKEN}")
        connection.trust()
        found = find_handler(self._exchanges, command)
        connection.send(Kind.OPEN, deadline_s=time.monotonic() + HELLO_TIMEOUT_S)
        return found
