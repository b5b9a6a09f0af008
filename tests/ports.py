"""Ports for servers that tests start, or start again, at a place chosen before.

They lie below those that the system gives to outgoing connections, and each process of the tests
begins at a place of its own, so that nobody takes one between the choice and its use.
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
    """One that nobody listens at; another each time."""
    return next(_PORTS_OF_THIS_PROCESS)
