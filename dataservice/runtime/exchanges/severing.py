"""Ends TCP connections of this process from outside of the library that owns them.

A last resort for libraries that offer no bounded shutdown or write. Knows nothing of the protocol
on the sockets. Invariant: only connections with the given port or address are touched, never a
listener, never another process's descriptor.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

from dataservice.runtime.addresses import split_address

logger = logging.getLogger(__name__)


def sever_connections(port: int, peer_port: int | None = None) -> int:
    """Shuts down this process's connections whose local port is `port`; returns how many.

    `peer_port` limits that to the connection of one client. To the library that owns a socket it
    looks as if the peer had closed it, so the library cleans up by itself.
    """
    return _shut_down(
        sock
        for sock, local, peer in _connections()
        if local[1] == port and peer_port in (None, peer[1])
    )


def sever_connections_to(address: str) -> int:
    """Shuts down this process's connections to the server at `address`; returns how many."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        logger.warning("cannot tell which connections go to %s: %s", address, error)
        return 0
    servers = {(end[4][0], end[4][1]) for end in found}
    return _shut_down(
        sock
        for sock, _, peer in _connections()
        if (peer[0].removeprefix("::ffff:"), peer[1]) in servers
    )


def _shut_down(connections: Iterator[socket.socket]) -> int:
    count = 0
    for sock in connections:
        try:
            sock.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError as error:
            logger.debug("a connection was gone already: %s", error)
    return count


def _connections() -> Iterator[tuple[socket.socket, tuple[str, int], tuple[str, int]]]:
    """Yields this process's connected TCP sockets, each with its own and its peer's address."""
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
            yield sock, local[:2], peer[:2]


def _duplicate(descriptor: int) -> socket.socket | None:
    """Returns a socket on a duplicate descriptor, so that the owner may close its own any time.

    Returns None if the descriptor is closed or is no socket.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None
