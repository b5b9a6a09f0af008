"""Serves message streams to processes of its user on its host, over shared memory.

The counterpart of `flight.FlightServer`: the same handlers, the same errors. Checks the user at the
other end before it listens to anything. Invariant: `LocalServer.stop` is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from dataservice.runtime.auth import WRONG_TOKEN, tokens_equal
from dataservice.runtime.local_address import (
    HELLO_TIMEOUT_S,
    NotLocalError,
    dial,
    listen,
    peer_uid,
)
from dataservice.runtime.local_connection import LocalConnection
from dataservice.runtime.local_messages import Kind
from dataservice.runtime.message import Message, check_message, error_payload, find_handler
from dataservice.runtime.shared_memory import Body
from dataservice.runtime.threads import end_all

__all__ = ["LocalChannel", "LocalServer"]

logger = logging.getLogger(__name__)

LocalHandler = Callable[[dict[str, Any], "LocalChannel"], None]

_LINGER_S: Final = 2.0
# Servers look up this often whether they were stopped, should a wake-up get lost.
_RECHECK_S: Final = 1.0


class LocalChannel:
    """The server's end of one exchange, given to its handler; see `exchange.ServerChannel`."""

    shares_memory: ClassVar[bool] = True

    def __init__(self, connection: LocalConnection, stopping: threading.Event, peer: str) -> None:
        self.peer = peer
        self.idle = False
        self._connection = connection
        self._stopping = stopping

    def recv(self) -> Message | None:
        """The next message, or None when the client has finished sending.

        Waits as long as the client stays connected and the server runs; `abort` ends the wait.
        """
        self.idle = True
        try:
            received = self._patiently(self._connection.receive)
        finally:
            self.idle = False
        if received is None:
            return None
        if received.kind is not Kind.MESSAGE:
            raise InvalidArgumentError(f"a client sent a packet of kind {received.kind.name}")
        return Message(received.header, received.body)

    def send(self, header: bytes, body: pa.Buffer | bytes | Body | None = None) -> None:
        """Send one message; waits while the client does not read, or keeps what it was sent."""
        check_message(header, body)
        self._patiently(
            lambda until_s: self._connection.send(Kind.MESSAGE, header, body, deadline_s=until_s)
        )

    def cancelled(self) -> bool:
        """Whether the client cancelled or is gone, or the server is stopping."""
        return self._stopping.is_set() or self._connection.is_gone()

    def abort(self) -> None:
        """Cut the connection, from any thread."""
        self._connection.shut_down()

    def fail(self, error: BaseException) -> None:
        """Tell the client which error ended the exchange."""
        self._finish(Kind.ERROR, error_payload(error))

    def done(self) -> None:
        """Tell the client that the handler has ended."""
        self._finish(Kind.DONE, b"")

    def _finish(self, kind: Kind, payload: bytes) -> None:
        until_s = time.monotonic() + _LINGER_S
        try:
            self._connection.send(kind, payload, deadline_s=until_s)
            self._connection.await_close(until_s)
        except DataServiceError as lost:
            logger.debug("the client at %s is gone, it misses the end: %s", self.peer, lost)

    def _patiently(self, act: Callable[[float], Any]) -> Any:
        """Calls until it is no matter of time any more."""
        while True:
            if self._stopping.is_set():
                raise CancelledError("the server stops")
            try:
                return act(time.monotonic() + _RECHECK_S)
            except DeadlineExceededError:
                continue
            except UnavailableError as error:
                raise CancelledError(f"the client at {self.peer} is gone: {error}") from error


class LocalServer:
    """Serves named exchanges to processes of this user and host. A thread per open exchange.

    `address` is what clients know the server by: what it announces elsewhere.
    """

    def __init__(self, address: str, *, token: str, exchanges: Mapping[str, LocalHandler]) -> None:
        self.address = address
        self._token = token
        self._exchanges = dict(exchanges)
        self._stopping = threading.Event()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._open: dict[LocalConnection, threading.Thread] = {}
        self._lock = threading.Lock()

    def start(self) -> LocalServer:
        """Listens. NotLocalError where the platform cannot, or the name is taken."""
        listener = listen(self.address)
        listener.settimeout(_RECHECK_S)
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener,), name=f"local-{self.address}", daemon=True
        )
        self._accepting.start()
        return self

    def stop(self, grace_s: float = 0.5, timeout_s: float = 5.0) -> None:
        """Refuse new clients, let busy handlers finish for `grace_s`, then cut connections.

        Idempotent and bounded by `timeout_s`.
        """
        self._stopping.set()
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is None:
            return
        deadline_s = time.monotonic() + timeout_s
        # A client ends the wait in accept at once; closing the listener would not.
        with contextlib.suppress(NotLocalError):
            dial(self.address).close()
        if self._accepting is not None:
            self._accepting.join(timeout_s)
        listener.close()
        with self._lock:
            serving = dict(self._open)
        late = end_all(serving, LocalConnection.shut_down, grace_s=grace_s, deadline_s=deadline_s)
        if late:
            logger.warning("%d exchanges of %s have not ended", late, self.address)

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._stopping.is_set():
                    return
                # Out of descriptors, most likely; those who wait are served once there are some.
                logger.warning("cannot accept a client on this host: %s", error)
                self._stopping.wait(_RECHECK_S)
                continue
            if self._stopping.is_set():
                sock.close()
            else:
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        connection = LocalConnection(sock)
        uid = peer_uid(sock)
        if uid != os.getuid():
            logger.warning("refused a process of user %d; this is user %d", uid, os.getuid())
            connection.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"local-{self.address}", daemon=True
        )
        with self._lock:
            self._open[connection] = thread
        thread.start()

    def _serve(self, connection: LocalConnection) -> None:
        channel = LocalChannel(connection, self._stopping, f"this host, {self.address}")
        try:
            self._converse(connection, channel)
        except DataServiceError as error:
            if isinstance(error, CancelledError) and channel.cancelled():
                logger.debug("exchange ended: %s", error)
            else:
                channel.fail(error)
        except Exception as error:
            logger.exception("an exchange with %s failed", channel.peer)
            channel.fail(error)
        finally:
            connection.close()
            with self._lock:
                self._open.pop(connection, None)

    def _converse(self, connection: LocalConnection, channel: LocalChannel) -> None:
        hello = connection.receive(time.monotonic() + HELLO_TIMEOUT_S)
        if hello is None or hello.kind is not Kind.OPEN:
            raise InvalidArgumentError("a client did not begin with what it wants")
        token, _, command = hello.header.partition(b"\n")
        if not tokens_equal(self._token, token.decode(errors="replace")):
            raise UnauthenticatedError(f"{self.address} refused the call: {WRONG_TOKEN}")
        handler, decoded = find_handler(self._exchanges, command)
        connection.send(Kind.OPEN, deadline_s=time.monotonic() + HELLO_TIMEOUT_S)
        handler(decoded, channel)
        channel.done()
