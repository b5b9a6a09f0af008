"""A connected socket with one owner, which any thread may shut down.

Responsible for the parts that streams and packets share: detecting that the peer is gone, and
ending this end. Knows nothing of what is sent. Invariant: no descriptor is used after it was
closed, since its number may then belong to another connection.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
from typing import Final

from dataservice.errors import UnavailableError

_GONE: Final = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ECONNABORTED}
)
_TIMEOUT: Final = struct.Struct("@ll")
_HUNG_UP: Final = int(getattr(select, "POLLRDHUP", 0)) | select.POLLHUP


class OwnedSocket:
    """The base of classes that send and receive on ``sock``, which they own."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # Reentrant: garbage collection may close a stream at any point of any thread, also while
        # that thread holds the lock.
        self._ending = threading.RLock()
        self._closed = False

    def _block_at_most(self, seconds: float, *directions: int) -> None:
        """Makes calls wait in the kernel, which then give up after ``seconds``.

        A wait is one system call then, instead of two or three. ``directions`` are SO_RCVTIMEO and
        SO_SNDTIMEO.
        """
        self._socket.setblocking(True)
        limit = _TIMEOUT.pack(int(seconds), int(seconds % 1 * 1e6))
        for direction in directions:
            self._socket.setsockopt(socket.SOL_SOCKET, direction, limit)

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_gone(self) -> bool:
        """True if the peer closed its end, or this end was shut down; does not read."""
        descriptor = self._socket.fileno()  # read once, since another thread may close the socket
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, _HUNG_UP)
        return any(event & _HUNG_UP for _, event in poll.poll(0))

    def shut_down(self) -> None:
        """Ends all calls at both ends; from any thread. Idempotent."""
        with self._ending:
            if not self._closed:
                _shut_down(self._socket)

    def close(self) -> None:
        """Frees the socket; no call but ``shut_down`` may be in progress. Idempotent."""
        with self._ending:
            self._closed = True
            self._socket.close()


def is_gone_by(error: OSError) -> bool:
    """True if the error means that the peer is gone."""
    return error.errno in _GONE


def lost(error: OSError | None) -> UnavailableError:
    """Returns the error to raise for a failed call; None stands for the end of the stream."""
    if error is None or is_gone_by(error):
        return UnavailableError("the peer closed the connection")
    return UnavailableError(f"the connection broke: {error}")


def _shut_down(sock: socket.socket) -> None:
    try:
        # The method of the plain socket: an SSLSocket's own would drop its TLS state while other
        # threads use it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError as error:
        if not is_gone_by(error):
            raise
