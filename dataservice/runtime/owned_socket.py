"""A connected socket with one owner, which any thread may shut down.

What is alike in streams and in packets: whether the other end is there still, and how this one
ends. Invariant: nothing is done to a descriptor after it was closed, when its number may be that of
another connection.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
from typing import Final

from dataservice.errors import UnavailableError

__all__ = ["OwnedSocket", "is_gone_by", "lost"]

_GONE: Final = frozenset(
    {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ECONNABORTED}
)
_HUNG_UP: Final = int(getattr(select, "POLLRDHUP", 0)) | select.POLLHUP


class OwnedSocket:
    """Base of what sends and receives on ``sock``, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # Collection may end a stream at any point of any thread, of this very one too.
        self._ending = threading.RLock()
        self._closed = False

    def is_gone(self) -> bool:
        """Whether the peer closed its end, or this one was shut down; does not read."""
        descriptor = self._socket.fileno()  # once: another thread may close it
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, _HUNG_UP)
        return any(event & _HUNG_UP for _, event in poll.poll(0))

    def shut_down(self) -> None:
        """Ends all calls, here and at the peer, from any thread. Idempotent."""
        with self._ending:
            if not self._closed:
                _shut_down(self._socket)

    def close(self) -> None:
        """Frees the socket; no call but ``shut_down`` may be under way. Idempotent."""
        with self._ending:
            self._closed = True
            self._socket.close()


def is_gone_by(error: OSError) -> bool:
    """Whether the error says that the peer has left."""
    return error.errno in _GONE


def lost(error: OSError | None) -> UnavailableError:
    """What to raise for a call that failed; None: it found the end of what comes."""
    if error is None or is_gone_by(error):
        return UnavailableError("the peer closed the connection")
    return UnavailableError(f"the connection broke: {error}")


def _shut_down(sock: socket.socket) -> None:
    try:
        # Of the socket itself: TLS would forget its state under those who use it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError as error:
        if not is_gone_by(error):
            raise
