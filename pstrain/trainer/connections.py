"""Open message streams to every parameter server, lent to one thread at a time.

Sends to all servers first and then receives from all, so that they work in parallel without a
thread for each; shared memory connects a server of the same host and user. A thread gets the
streams that it used last, because it is done with what it read from them: shared memory then goes
back along with its next message, instead of by one of its own. Knows nothing of what messages mean.
Invariant: a stream is lent again only when every reply it owed has been read; after any failure it
is closed instead.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.socket_client import SocketClient
from dataservice.runtime.exchanges.transport import open_local
from pstrain.errors import (
    CancelledError,
    DeadlineExceededError,
    ServerLostError,
    UnavailableError,
)
from pstrain.paramserver import pieces
from pstrain.paramserver.messages import EXCHANGE, Body
from pstrain.paramserver.pieces import Arrived

Streams = dict[int, ConnectionExchange]


# Pauses between attempts to reach a server whose connection broke: a short interruption of the
# network must not count as the loss of what the server holds.
_PAUSES_S = (0.02, 0.1, 0.5)


class Request(NamedTuple):
    """One message to one server."""

    header: bytes
    body: Body = None


class Connections:
    """Streams to the servers at ``addresses``; opened on first use. Thread-safe.

    ``remedy``: completes error texts; what users have to do once they started a lost server again.
    ``connect_timeout_s``: a server that cannot be connected to for so long is lost, however long a
    reply may take.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str,
        tls: TlsConfig | None,
        remedy: str,
        connect_timeout_s: float,
        share_memory: bool = True,
    ) -> None:
        self.addresses = tuple(addresses)
        self._connect_timeout_s = connect_timeout_s
        self._remedy = remedy
        self._token = token
        self._share_memory = share_memory
        self._clients = [SocketClient(a, token=token, tls=tls) for a in addresses]
        self._lock = threading.Lock()
        self._free: dict[int, Streams] = {}  # by the thread that used them last
        self._closed = False
        # A stream occupies a socket, here and at its server, until it is closed.
        self._finalizer = weakref.finalize(self, _close_all, self._free)

    def ask(
        self, requests: Mapping[int, Request], timeout_s: float, *, repeat: bool
    ) -> dict[int, Arrived]:
        """Sends requests, and returns the replies by server index.

        A stream that breaks is opened again, a few times within a second. With ``repeat`` its
        request is then sent again even if it may have arrived. Raises ServerLostError, naming the
        server, if a reply cannot be had, DeadlineExceededError if not within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        streams = self._take()
        asked: dict[int, bool] = {}
        replies: dict[int, Arrived] = {}
        try:
            for server, request in requests.items():
                asked[server] = self._send(streams, server, request, deadline_s)
            for server, request in requests.items():
                reply = None
                if asked[server]:
                    reply = self._reply(streams, server, deadline_s, may_fail=repeat)
                if reply is None:
                    _close_one(streams, server)
                    reply = self._retry(streams, server, request, deadline_s, repeat=repeat)
                replies[server] = reply
        except DeadlineExceededError as error:
            _close(streams)
            done: Mapping[int, object] = asked if len(asked) < len(requests) else replies
            silent = next(server for server in requests if server not in done)
            raise DeadlineExceededError(
                f"parameter server {silent} at {self.addresses[silent]} has not answered within "
                f"{timeout_s:g} s"
            ) from error
        except BaseException:
            _close(streams)
            raise
        self._give(streams)
        return replies

    def action(self, server: int, name: str, body: bytes, timeout_s: float) -> bytes:
        """Calls an action of one server."""
        try:
            return self._clients[server].action(name, body, timeout_s=timeout_s)
        except UnavailableError as error:
            raise self._unavailable(server, error) from error
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"parameter server {server}: {error}") from error

    def open_stream(self, server: int, exchange: str, timeout_s: float) -> ConnectionExchange:
        """Opens a stream to one server that is the caller's own."""
        return self._clients[server].exchange({"exchange": exchange}, timeout_s=timeout_s)

    def close(self) -> None:
        """Closes the free streams; a stream in use is closed when its call ends. Idempotent."""
        with self._lock:
            self._closed = True
        self._finalizer()

    def _take(self) -> Streams:
        with self._lock:
            if self._closed:
                raise CancelledError("the connections to the parameter servers are closed")
            if not self._free:
                return {}
            mine = self._free.pop(threading.get_ident(), None)
            return self._free.popitem()[1] if mine is None else mine

    def _give(self, streams: Streams) -> None:
        thread = threading.get_ident()
        with self._lock:
            if not self._closed:
                # A signal handler that asked meanwhile, in this thread, has given back others.
                self._free[thread], streams = streams, self._free.pop(thread, {})
        _close(streams)

    def _send(self, streams: Streams, server: int, request: Request, deadline_s: float) -> bool:
        """Sends a request, opening the stream if needed; False if the stream is broken.

        ServerLostError if the server could not be connected to for the time that this may take.
        """
        try:
            self._send_or_fail(streams, server, request, deadline_s)
        except ServerLostError:
            raise
        except UnavailableError:
            return False
        return True

    def _send_or_fail(
        self, streams: Streams, server: int, request: Request, deadline_s: float
    ) -> None:
        if server not in streams:
            self._open(streams, server, deadline_s)
        _send(streams[server], request, deadline_s, self.addresses[server])

    def _retry(
        self, streams: Streams, server: int, request: Request, deadline_s: float, *, repeat: bool
    ) -> Arrived:
        """Sends a request over new streams, with pauses, and returns the reply."""
        for pause_s in _PAUSES_S:
            if self._send(streams, server, request, deadline_s):
                reply = self._reply(streams, server, deadline_s, may_fail=repeat)
                if reply is not None:
                    return reply
            _close_one(streams, server)
            time.sleep(pause_s)
        try:
            self._send_or_fail(streams, server, request, deadline_s)
        except ServerLostError:
            raise
        except UnavailableError as error:
            raise self._unavailable(server, error) from error
        reply = self._reply(streams, server, deadline_s, may_fail=False)
        assert reply is not None
        return reply

    def _reply(
        self, streams: Streams, server: int, deadline_s: float, *, may_fail: bool
    ) -> Arrived | None:
        """Returns the next message; None if ``may_fail`` and the stream is broken."""
        error: Exception | None = None
        try:
            address, stream = self.addresses[server], streams[server]
            message = pieces.receive(lambda: stream.recv(_left(deadline_s, address)))
        except UnavailableError as broken:
            message, error = None, broken
        if message is None and not may_fail:
            raise self._unavailable(server, error or "it ended the stream") from error
        return message

    def _open(self, streams: Streams, server: int, deadline_s: float) -> None:
        address, command = self.addresses[server], {"exchange": EXCHANGE}
        left_s = _left(deadline_s, address)
        if self._share_memory:
            local = open_local(address, command, token=self._token, timeout_s=left_s)
            if local is not None:
                streams[server] = local
                return
        limit_s = min(left_s, self._connect_timeout_s)
        try:
            streams[server] = self._clients[server].exchange(command, timeout_s=limit_s)
        except DeadlineExceededError as error:
            if limit_s == left_s:
                raise
            raise self._unavailable(server, error) from error

    def _unavailable(self, server: int, error: Exception | str) -> ServerLostError:
        return ServerLostError(
            f"parameter server {server} at {self.addresses[server]} is gone: {error}. Start it "
            f"again{self._remedy}"
        )


def _send(stream: ConnectionExchange, request: Request, deadline_s: float, address: str) -> None:
    if stream.shares_memory:
        stream.send(request.header, request.body, timeout_s=_left(deadline_s, address))
        return

    def send_one(header: bytes, body: pa.Buffer | None) -> None:
        stream.send(header, body, timeout_s=_left(deadline_s, address))

    pieces.send(send_one, *request)


def _left(deadline_s: float, address: str) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise DeadlineExceededError(f"parameter server {address} did not answer in time")
    return left_s


def _close_one(streams: Streams, server: int) -> None:
    broken = streams.pop(server, None)
    if broken is not None:
        broken.close()


def _close(streams: Streams) -> None:
    for stream in streams.values():
        stream.close()


def _close_all(free: dict[int, Streams]) -> None:
    while free:
        _close(free.popitem()[1])
