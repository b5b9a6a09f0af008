"""Listening on a TCP port, with errors that say what to choose instead.

Knows nothing of what is served. Invariant: a listener that could not be bound is closed.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from dataservice.errors import AddressInUseError, DataServiceError, InvalidArgumentError

_BACKLOG: Final = 1_024


def listen(host: str, port: int) -> socket.socket:
    """Returns a listener on a port; 0 binds any free one.

    Raises AddressInUseError if the port is taken, InvalidArgumentError if the address is not one of
    this machine or the port may not be opened.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name with IPv4 and IPv6 addresses, such as localhost, is served on IPv4, which most
        # clients try first.
        family, kind, protocol, _, place = min(found, key=lambda info: info[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise refused(host, port, error) from error
    try:
        # Allows a port that was served a moment ago; a port in use is refused all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and hasattr(socket, "IPV6_V6ONLY"):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise refused(host, port, error) from error
    return listener


def refused(host: str, port: int, error: OSError) -> DataServiceError:
    """Returns what to raise if ``error`` kept a server from listening."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"port {port} on {host} is already in use; choose another --port, or 0 for a free one"
        )
    return InvalidArgumentError(
        f"cannot listen on port {port} of host {host!r} ({error.strerror or error}): choose a "
        "--host of this machine and a --port that you may open"
    )
