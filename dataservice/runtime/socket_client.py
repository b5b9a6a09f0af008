"""The client of a SocketServer: connects, opens exchanges, calls actions.

Knows nothing of what is said. Invariant: no call outlives its timeout, and none leaves a socket.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from dataservice.errors import DataLossError, DeadlineExceededError, UnavailableError
from dataservice.runtime.addresses import split_address
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.byte_streams import ByteStream, PlainStream, TlsStream
from dataservice.runtime.connection_exchange import ConnectionExchange
from dataservice.runtime.message import ACTION
from dataservice.runtime.socket_connection import SocketConnection
from dataservice.runtime.tls_probe import explained

__all__ = ["SocketClient"]


class SocketClient:
    """Reaches one SocketServer, by a connection for each exchange. Thread safe; holds none itself.

    InvalidArgumentError or FailedPreconditionError for certificates that cannot be used.
    """

    def __init__(self, address: str, *, token: str, tls: TlsConfig | None = None) -> None:
        self.address = address
        self._place = split_address(address)
        self._token = token
        self._tls = tls
        if tls is not None:
            tls.read_roots()  # says now what is wrong with them
        self._context: ssl.SSLContext | None = None
        self._was_answered = False

    def exchange(
        self, command: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> ConnectionExchange:
        """Open the exchange that `command["exchange"]` names.

        Returns when the server has accepted it; raises what the server refused it with.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            connection = SocketConnection(self._connect(timeout_s), trusted=True)
            left_s = max(deadline_s - time.monotonic(), 0.001)
            exchange = ConnectionExchange(
                connection, self.address, command, token=self._token, timeout_s=left_s
            )
        except (UnavailableError, DataLossError) as error:
            found = self._explained(error)
            if found is error:
                raise
            raise found from error
        self._was_answered = True
        return exchange

    def action(self, name: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        """Call an action and return its reply; raises what its handler raised."""
        deadline_s = time.monotonic() + timeout_s
        with self.exchange({"exchange": ACTION, "name": name}, timeout_s=timeout_s) as exchange:
            exchange.send(b"", body, timeout_s=max(deadline_s - time.monotonic(), 0.001))
            reply = exchange.recv(max(deadline_s - time.monotonic(), 0.001))
        if reply is None or reply.body is None:
            raise DataLossError(f"{self.address} ended action {name!r} without a reply")
        return reply.body.to_pybytes()

    def _connect(self, timeout_s: float) -> ByteStream:
        try:
            sock = _dial(self._place, timeout_s)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"no answer from {self.address} in time: it could not be connected to"
            ) from error
        except (OSError, UnicodeError) as error:  # a name that cannot be one
            raise UnavailableError(f"{self.address} cannot be reached: {error}") from error
        try:
            if self._tls is None:
                return PlainStream(sock)
            # Made once somebody connects: of the system's roots there are many to read.
            self._context = self._context or self._tls.client_context()
            return TlsStream(_wrapped(sock, self._context, self._place[0]))
        except OSError as error:
            sock.close()
            raise UnavailableError(f"{self.address} cannot be reached: {error}") from error

    def _explained(self, error: UnavailableError | DataLossError) -> Exception:
        """Servers keep to what they speak: only who was never answered asks what that is."""
        if self._was_answered:
            return error
        lost = error if isinstance(error, UnavailableError) else UnavailableError(str(error))
        ca_path = None if self._tls is None else self._tls.ca_path
        by_tls = self._tls is not None
        found = explained(lost, self.address, by_tls=by_tls, ca_path=ca_path)
        return error if found is lost else found


def _dial(place: tuple[str, int], timeout_s: float) -> socket.socket:
    """The first of a name's addresses that answers; TimeoutError after all of that time.

    How long it takes to look the name up is up to the system.
    """
    found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    failure: OSError = OSError("the name has no address")
    deadline_s = time.monotonic() + timeout_s
    for number, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            left_s = (deadline_s - time.monotonic()) / (len(found) - number)
            sock.settimeout(max(left_s, 0.001))
            sock.connect(address)
            # Where nobody listens at a port that the system gives out, it may give out that one.
            if sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _wrapped(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Hands are shaken by the first call, within its deadline."""
    sock.setblocking(False)
    return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
