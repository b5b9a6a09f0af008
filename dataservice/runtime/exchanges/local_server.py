"""Serves message streams to processes of its user on its host, over shared memory.

Responsible for checking the user at the other end before anything is read. Knows nothing of what
the messages mean. Invariant: nothing is read from a process of another user.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from dataservice.runtime.exchanges.connection_channel import AnyHandler
from dataservice.runtime.exchanges.connection_server import ConnectionServer
from dataservice.runtime.exchanges.local_address import listen, peer_uid
from dataservice.runtime.exchanges.local_connection import LocalConnection

logger = logging.getLogger(__name__)


class LocalServer(ConnectionServer):
    """A server of named exchanges for processes of this user and host.

    `address` is the address that the server announces elsewhere; clients find it by that.
    """

    def __init__(self, address: str, *, token: str, exchanges: Mapping[str, AnyHandler]) -> None:
        super().__init__(token=token, exchanges=exchanges)
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def start(self) -> LocalServer:
        """Starts to listen; raises NotLocalError if the platform cannot, or the name is taken."""
        self._listen(listen(self._address))
        return self

    def _admit(self, sock: socket.socket) -> tuple[LocalConnection, str] | None:
        connection = LocalConnection(sock)
        uid = peer_uid(sock)
        if uid != os.getuid():
            logger.warning("refused a process of user %d; this is user %d", uid, os.getuid())
            connection.close()
            return None
        return connection, f"this host, {self._address}"
