"""Ends accepted TCP connections of a server from outside of the library that serves them.

A last resort for libraries that offer no bounded shutdown. Knows nothing of the protocol on the
sockets. Invariant: only connections accepted on the given port are touched, never a listener,
never another process's descriptor.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

__all__ = ["sever_connections"]

logger = logging.getLogger(__name__)


def sever_connections(port: int, peer_port: int | None = None) -> int:
    """Shut down this process's connections whose local port is `port`; returns how many.

    `peer_port` limits that to the connection of one client. The library that owns a socket sees
    its peer close it, and does its own cleaning up.
    """
    count = 0
    for sock in _connections(port, peer_port):
        try:
            sock.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError as error:
            logger.debug("a connection of port %d was gone already: %s", port, error)
    return count


def _connections(port: int, peer_port: int | None) -> Iterator[socket.socket]:
    for name in os.listdir("/dev/fd"):
        sock = _duplicate(int(name))
        if sock is None:
            continue
        with sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                local, peer = sock.getsockname(), sock.getpeername()
            except OSError:  # a listener, or a connection that has ended
                continue
            if local[1] == port and peer_port in (None, peer[1]):
                yield sock


def _duplicate(descriptor: int) -> socket.socket | None:
    """A socket on a duplicate, so that the owner may close its own at any moment."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None
