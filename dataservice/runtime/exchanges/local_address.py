"""How the processes of one user on one host find each other to share memory.

A server listens on an abstract Unix socket whose name is derived from the user and the address that
the server announces. So a client needs no configuration: it connects, and if nothing listens there,
the server is elsewhere. Knows nothing of what is sent. Invariant: `dial` returns only connections
to processes of the same user.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from typing import Final

from dataservice.runtime.exchanges.shared_memory import is_supported

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG: Final = 128


class NotLocalError(Exception):
    """Memory cannot be shared with a server; the message says why."""


def socket_name(address: str) -> bytes:
    """Returns the abstract socket name under which this user's server at `address` listens."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:32]
    return f"\0dataservice.{os.getuid()}.{digest}".encode()


def peer_uid(sock: socket.socket) -> int:
    """Returns the user id of the process at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def dial(address: str) -> socket.socket:
    """Connects to the server that announces `address`; raises NotLocalError if there is none here.

    Never waits; the socket is non-blocking.
    """
    _check_supported()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        sock.connect(socket_name(address))
        uid = peer_uid(sock)
        if uid != os.getuid():
            raise NotLocalError(f"it runs as user {uid}, this process as {os.getuid()}")
    except ConnectionRefusedError:
        sock.close()
        raise NotLocalError("no server of this user shares memory on this host") from None
    except OSError as error:
        sock.close()
        raise NotLocalError(f"its socket on this host cannot be used: {error}") from error
    except NotLocalError:
        sock.close()
        raise
    return sock


def listen(address: str) -> socket.socket:
    """Returns a listener for clients that dial `address`.

    Raises NotLocalError if the platform does not support it, or the name is taken.
    """
    _check_supported()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(socket_name(address))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise NotLocalError(
            f"another server of this user announces {address} too: {error}"
        ) from error
    return listener


def _check_supported() -> None:
    if not is_supported():
        raise NotLocalError("this platform has no memfd_create, which sharing memory needs")
