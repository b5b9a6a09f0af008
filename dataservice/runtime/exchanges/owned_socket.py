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
# How long a thread waits before it looks at the time again. The system itself ends a wait when
# something comes, when the peer's process dies or closes its end, and on `shut_down`, so looking
# serves deadlines only.
LOOK_S: Final = 2.0
# The limit of calls whose deadline is nearer than that; waits that are shorter still need `poll`, a
# system call more.
_SHORT_S: Final = 0.25
_HUNG_UP: Final = int(getattr(select, "POLLRDHUP", 0)) | select.POLLHUP


class OwnedSocket:
    """The base of classes that send and receive on ``sock``, which they own."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._limits_s: dict[int, float] = {}
        # Reentrant: garbage collection may close a stream at any point of any thread, also while
        # that thread holds the lock.
        self._ending = threading.RLock()
        self._closed = False

    def _may_block(self, direction: int, left_s: float) -> bool:
        """Lets calls of a direction, SO_RCVTIMEO or SO_SNDTIMEO, wait in the kernel for a while.

        A wait is one system call then, instead of two or three; it may give up early, but not after
        ``left_s``. Returns False if ``left_s`` is too short for that. One thread at a time may use
        a direction.
        """
        if left_s < _SHORT_S:
            return False
        limit_s = LOOK_S if left_s >= LOOK_S else _SHORT_S
        if self._limits_s.get(direction) != limit_s:
            limit = _TIMEOUT.pack(int(limit_s), int(limit_s % 1 * 1e6))
            self._set_option(direction, limit)
            self._limits_s[direction] = limit_s
        return True

    def _set_option(self, option: int, value: bytes) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)
        except OSError as error:
            raise lost(error) from error

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
