"""Message streams between processes of one user on one host, over shared memory.

The counterpart of `flight`: the same handlers, the same calls and errors at both ends, faster by
what copying through a network stack costs. A server listens on an abstract Unix socket whose name
follows from the user and the address that it announces, so a client needs to be told nothing: it
tries, and where nobody listens, the server is elsewhere. Both sides check the other's user id
before the token is shown.

Invariant: no client call outlives its timeout, and `LocalServer.stop` is bounded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
import struct
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
from dataservice.runtime.exchange import Message, error_from_payload, error_payload, find_handler
from dataservice.runtime.local_connection import LocalConnection, Received
from dataservice.runtime.local_messages import Kind
from dataservice.runtime.shared_memory import Body, is_supported
from dataservice.runtime.threads import end_all

__all__ = ["LocalChannel", "LocalExchange", "LocalServer", "NotLocalError", "dial"]

logger = logging.getLogger(__name__)

LocalHandler = Callable[[dict[str, Any], "LocalChannel"], None]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG: Final = 128
_HELLO_TIMEOUT_S: Final = 5.0
_LINGER_S: Final = 2.0
# Servers look up this often whether they were stopped, should a wake-up get lost.
_RECHECK_S: Final = 1.0


class NotLocalError(Exception):
    """Memory cannot be shared with a server; says why."""


def socket_name(address: str) -> bytes:
    """The abstract name under which the server of this user at `address` listens."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:32]
    return f"\0dataservice.{os.getuid()}.{digest}".encode()


def _peer_uid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def dial(address: str) -> socket.socket:
    """A connection to the server that announces `address`; NotLocalError where there is none."""
    if not is_supported():
        raise NotLocalError("this platform has no memfd_create, which sharing memory needs")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        sock.connect(socket_name(address))
        uid = _peer_uid(sock)
        if uid != os.getuid():
            raise NotLocalError(f"it runs as user {uid}, this process as {os.getuid()}")
    except ConnectionRefusedError:
        sock.close()
        raise NotLocalError("no server of this user shares memory on this host") from None
    except OSError as error:
        sock.close()
        raise NotLocalError(f"its socket on this host cannot be used: {error}") from error
    except NotLocalError:
        sock.close()
        raise
    return sock


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
        _check_message(header, body)
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
        if not is_supported():
            raise NotLocalError("this platform has no memfd_create, which sharing memory needs")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(socket_name(self.address))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise NotLocalError(
                f"another server of this user announces {self.address} too: {error}"
            ) from error
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
        uid = _peer_uid(sock)
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
        hello = connection.receive(time.monotonic() + _HELLO_TIMEOUT_S)
        if hello is None or hello.kind is not Kind.OPEN:
            raise InvalidArgumentError("a client did not begin with what it wants")
        token, _, command = hello.header.partition(b"\n")
        if not tokens_equal(self._token, token.decode(errors="replace")):
            raise UnauthenticatedError(f"{self.address} refused the call: {WRONG_TOKEN}")
        handler, decoded = find_handler(self._exchanges, command)
        connection.send(Kind.OPEN, deadline_s=time.monotonic() + _HELLO_TIMEOUT_S)
        handler(decoded, channel)
        channel.done()


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
        self._request_lock = threading.Lock()
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
        _check_message(header, body)
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

    def request(
        self, header: bytes, body: pa.Buffer | bytes | Body | None = None, *, timeout_s: float
    ) -> Message:
        """Send a message and receive its answer; requests of several threads take turns."""
        with self._request_lock:
            self.send(header, body, timeout_s=timeout_s)
            message = self.recv(timeout_s)
        if message is None:
            raise UnavailableError(f"{self._address} ended {self._name!r} without an answer")
        return message

    def done_writing(self) -> None:
        """Tell the server that nothing more is sent; its `recv` gives None."""
        deadline_s = time.monotonic() + _HELLO_TIMEOUT_S
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


def _check_message(header: bytes, body: object) -> None:
    if body is None and not header:
        raise InvalidArgumentError("a message needs a header or a body, this one has neither")
