"""Free ports for servers that tests start, or restart, at an address chosen beforehand.

The ports lie below the range that the system gives to outgoing connections, and each test process
begins at an offset of its own, so that nobody takes a port between its choice and its use.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

_FIRST_PORT, _PORTS = 15_000, 16_000


def _free_ports() -> Iterator[int]:
    offset = os.getpid() * 37
    while True:
        offset += 1
        port = _FIRST_PORT + offset % _PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_PORTS_OF_THIS_PROCESS = _free_ports()


def free_port() -> int:
    """Returns a port at which nobody listens; a different one at each call."""
    return next(_PORTS_OF_THIS_PROCESS)
