"""Serves message streams and small calls over TCP, plain or with TLS.

Knows nothing of what the messages mean. Invariant: a client without the token costs no more than a
thread and some hundred kilobytes, for a few seconds.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from dataservice.errors import NotFoundError
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges.byte_streams import PlainStream, TlsStream
from dataservice.runtime.exchanges.connection_channel import AnyHandler, ConnectionChannel
from dataservice.runtime.exchanges.connection_exchange import Connection
from dataservice.runtime.exchanges.connection_server import ConnectionServer
from dataservice.runtime.exchanges.message import ACTION
from dataservice.runtime.exchanges.socket_connection import SocketConnection
from dataservice.runtime.listening import listen

logger = logging.getLogger(__name__)

ActionHandler = Callable[[bytes], bytes]


class SocketServer(ConnectionServer):
    """A server of named exchanges and actions on one port.

    `port` 0 chooses a free port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        tls: TlsConfig | None = None,
        exchanges: Mapping[str, AnyHandler],
        actions: Mapping[str, ActionHandler] | None = None,
    ) -> None:
        super().__init__(token=token, exchanges={**exchanges, ACTION: self._act})
        self._host = host
        self._port = port
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._actions = dict(actions or {})

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
        listener = listen(self._host, self._port)
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
