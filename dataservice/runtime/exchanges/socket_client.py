"""The client of a SocketServer: connects, opens exchanges, calls actions.

Knows nothing of what the messages mean. Invariant: no call outlives its time-out, and no failed
call leaves a socket open.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from dataservice.errors import DataLossError, DeadlineExceededError, UnavailableError
from dataservice.runtime.addresses import split_address
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges.byte_streams import ByteStream, PlainStream, TlsStream
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.message import ACTION
from dataservice.runtime.exchanges.socket_connection import SocketConnection
from dataservice.runtime.tls_probe import explained

# The network says that the host is not there: it has lost power, or the network is interrupted.
_CUT_OFF: Final = (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
_REDIAL_EVERY_S: Final = 0.2


class SocketClient:
    """A client of one SocketServer, with a connection for each exchange. Thread safe.

    Holds no connection itself. A host that the network does not reach counts as one that does not
    answer (DeadlineExceededError): it may be back with all that its server holds. Where the host
    answers that nobody listens, the server is gone (UnavailableError). Raises InvalidArgumentError
    or FailedPreconditionError for certificates that cannot be used.
    """

    def __init__(self, address: str, *, token: str, tls: TlsConfig | None = None) -> None:
        self.address = address
        self._place = split_address(address)
        self._token = token
        self._tls = tls
        if tls is not None:
            tls.read_roots()  # raises at once if they cannot be used
        self._context: ssl.SSLContext | None = None
        self._was_answered = False

    def exchange(
        self, command: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> ConnectionExchange:
        """Opens the exchange that `command["exchange"]` names.

        Returns when the server has accepted it; raises the error with which the server refused it.
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
        """Calls an action and returns its reply; raises what its handler raised."""
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
                f"no answer from {self.address} in time: it could not be connected to ({error})"
            ) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise UnavailableError(f"{self.address} cannot be reached: {error}") from error
        try:
            if self._tls is None:
                return PlainStream(sock)
            # Made at the first connection, since reading the system's many roots takes a while.
            self._context = self._context or self._tls.client_context()
            return TlsStream(_wrapped(sock, self._context, self._place[0]))
        except OSError as error:
            sock.close()
            raise UnavailableError(f"{self.address} cannot be reached: {error}") from error

    def _explained(self, error: UnavailableError | DataLossError) -> Exception:
        """Returns a clearer error if both ends disagree on TLS, else `error` itself.

        Probes the server only if it has never answered, since a server does not change that.
        """
        if self._was_answered:
            return error
        lost = error if isinstance(error, UnavailableError) else UnavailableError(str(error))
        ca_path = None if self._tls is None else self._tls.ca_path
        by_tls = self._tls is not None
        found = explained(lost, self.address, by_tls=by_tls, ca_path=ca_path)
        return error if found is lost else found


def _dial(place: tuple[str, int], timeout_s: float) -> socket.socket:
    """Connects to the first of a name's addresses that answers.

    Raises TimeoutError after `timeout_s`, until when it goes on if the host is cut off, or the
    error of the last address. The time for looking the name up is not included; the system bounds
    it.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return _dial_once(place, deadline_s)
        except TimeoutError:
            raise
        except OSError as error:
            if error.errno not in _CUT_OFF:
                raise
            # Looked up anew in the next round: what replaces a lost host may have its name.
            left_s = deadline_s - time.monotonic()
            if left_s <= _REDIAL_EVERY_S:
                raise TimeoutError(str(error)) from error
            time.sleep(_REDIAL_EVERY_S)


def _dial_once(place: tuple[str, int], deadline_s: float) -> socket.socket:
    found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            left_s = (deadline_s - time.monotonic()) / (len(found) - number)
            sock.settimeout(max(left_s, 0.001))
            sock.connect(address)
            # If nothing listens at an ephemeral port, the system may choose that very port for the
            # client, which is then connected to itself.
            if sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
            return sock
        except OSError as error:
            sock.close()
            # What an address answers says more than that another cannot be reached: many hosts
            # have addresses of IPv6 that many networks do not reach.
            if failure is None or error.errno not in _CUT_OFF:
                failure = error
        except BaseException:
            sock.close()
            raise
    raise failure or OSError("the name has no address")


def _wrapped(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Returns a TLS socket; its first call does the handshake, within that call's deadline."""
    sock.setblocking(False)
    return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
