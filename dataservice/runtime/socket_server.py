"""Serves message streams and small calls over TCP, plain or with TLS.

Knows nothing of what the messages mean. Invariant: a client without the token costs no more than a
thread and some hundred kilobytes, for a few seconds.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from dataservice.errors import AddressInUseError, InvalidArgumentError, NotFoundError
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.byte_streams import PlainStream, TlsStream
from dataservice.runtime.connection_exchange import Connection
from dataservice.runtime.connection_server import (
    ChannelHandler,
    ConnectionChannel,
    ConnectionServer,
)
from dataservice.runtime.message import ACTION
from dataservice.runtime.socket_connection import SocketConnection

logger = logging.getLogger(__name__)

_PING: Final = "ping"
_BACKLOG: Final = 1_024

ActionHandler = Callable[[bytes], bytes]


class SocketServer(ConnectionServer):
    """A server of named exchanges and actions on one port, with a thread per open exchange.

    `port` 0 chooses a free port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        tls: TlsConfig | None = None,
        exchanges: Mapping[str, ChannelHandler],
        actions: Mapping[str, ActionHandler] | None = None,
    ) -> None:
        super().__init__(token=token, exchanges={**exchanges, ACTION: self._act})
        self._host = host
        self._port = port
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._actions: dict[str, ActionHandler] = {_PING: lambda body: body, **(actions or {})}

    @property
    def port(self) -> int:
        """The bound port, once started."""
        return self._port

    @property
    def address(self) -> str:
        """The server's address, as `host:port`."""
        return format_address(self._host, self._port)

    def start(self) -> SocketServer:
        """Binds the port and serves.

        Raises AddressInUseError if the port is taken, InvalidArgumentError if the address is not
        one of this machine or the port may not be opened.
        """
        if self._tls is not None:
            self._context = self._tls.server_context()
        try:
            listener = _listener(self._host, self._port)
        except OSError as error:
            refused = f"port {self._port} on {self._host} cannot be served ({error})"
            if error.errno != errno.EADDRINUSE:
                raise InvalidArgumentError(
                    f"{refused}: choose a --host of this machine and a --port that you may open"
                ) from error
            raise AddressInUseError(
                f"{refused}; it is already in use: choose another --port, or 0 for a free one"
            ) from error
        self._port = listener.getsockname()[1]
        self._listen(listener)
        return self

    def _admit(self, sock: socket.socket) -> tuple[Connection, str] | None:
        try:
            peer = format_address(*sock.getpeername()[:2])
            if self._context is None:
                return SocketConnection(PlainStream(sock), trusted=False), peer
            # The handshake is done later, on the connection's own thread.
            sock.setblocking(False)
            wrapped = self._context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
            return SocketConnection(TlsStream(wrapped), trusted=False), peer
        except OSError as error:
            logger.debug("a client of %s was gone at once: %s", self.address, error)
            sock.close()
            return None

    def _act(self, command: dict[str, Any], channel: ConnectionChannel) -> None:
        name = command.get("name")
        if name not in self._actions:
            raise NotFoundError(f"no action {name!r}; there are {sorted(self._actions)}")
        request = channel.recv()
        if request is not None:
            body = b"" if request.body is None else request.body.to_pybytes()
            channel.send(b"", self._actions[name](body))


def _listener(host: str, port: int) -> socket.socket:
    """Returns a listener on the port; raises OSError if it cannot be bound."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name with IPv4 and IPv6 addresses, such as localhost, is served on IPv4, which most clients
    # try first.
    family, kind, protocol, _, place = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        # Allows a port that was served a moment ago; a port in use is refused all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and hasattr(socket, "IPV6_V6ONLY"):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
