"""The bytes of a TCP connection, plain or with TLS, with deadlines for every wait.

Knows no messages. Invariant: `shut_down`, from any thread, ends all calls.
"""

from __future__ import annotations

import functools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dataservice.errors import DeadlineExceededError
from dataservice.runtime.exchanges.owned_socket import LOOK_S, OwnedSocket, lost

# As plain numbers, since combining enum flags takes a microsecond.
_WHOLE: Final = int(socket.MSG_WAITALL)
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)
_NO_SIGNAL: Final = int(getattr(socket, "MSG_NOSIGNAL", 0))
# The largest record that TLS encrypts at once.
_RECORD_BYTES: Final = 16 << 10
# A host that is silent for two minutes counts as gone, which ends all waits for it. The last entry
# does this for data that was sent and not acknowledged.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 120_000,
}


class ByteStream(Protocol):
    """One end of a byte stream. One thread may receive while another sends.

    Any call raises UnavailableError if the peer is gone or `shut_down` was called, and
    DeadlineExceededError at `deadline_s` (monotonic clock).
    """

    def receive(self, room: memoryview, deadline_s: float, *, whole: bool) -> int:
        """Receives bytes into `room`, at least one, and returns how many.

        With `whole` it tries to fill all of `room`.
        """

    def send(self, parts: Sequence[memoryview], deadline_s: float) -> None:
        """Sends all bytes; after an error a part of them may have been sent."""

    def fileno(self) -> int:
        """Returns the descriptor that is readable once more has arrived."""

    def is_gone(self) -> bool:
        """True if the peer closed its end, or this end was shut down; does not read."""

    def shut_down(self) -> None:
        """Ends the stream at both ends. Idempotent."""

    def close(self) -> None:
        """Frees the socket; no call may be in progress."""


class PlainStream(OwnedSocket):
    """A connected TCP socket, which it owns; see `ByteStream`."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        _tune(sock)
        sock.setblocking(True)
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._may_block(direction, LOOK_S)

    def receive(self, room: memoryview, deadline_s: float, *, whole: bool) -> int:
        flags = _WHOLE if whole else 0
        while True:
            if not self._may_block(socket.SO_RCVTIMEO, deadline_s - time.monotonic()):
                _wait_for(self._socket, select.POLLIN, deadline_s)
                flags = 0
            try:
                size = self._socket.recv_into(room, 0, flags)
            except BlockingIOError:
                continue
            except OSError as error:
                raise lost(error) from error
            if not size:
                raise lost(None)
            return size

    def send(self, parts: Sequence[memoryview], deadline_s: float) -> None:
        left = [part for part in parts if part.nbytes]
        while left:
            flags = _NO_SIGNAL
            if not self._may_block(socket.SO_SNDTIMEO, deadline_s - time.monotonic()):
                _wait_for(self._socket, select.POLLOUT, deadline_s)
                flags |= _AT_ONCE
            try:
                sent = self._socket.sendmsg(left, (), flags)
            except BlockingIOError:
                continue
            except OSError as error:
                raise lost(error) from error
            _drop(left, sent)


class TlsStream(OwnedSocket):
    """A TLS socket, which it owns; see `ByteStream`. The first call does the handshake."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        _tune(sock)
        sock.setblocking(False)
        # The TLS library allows one call at a time, even if one thread sends and another receives.
        self._turn = threading.Lock()

    def receive(self, room: memoryview, deadline_s: float, *, whole: bool) -> int:  # noqa: ARG002
        size = self._retry_until_done(lambda: self._socket.recv_into(room), deadline_s)
        if not size:
            raise lost(None)
        return size

    def send(self, parts: Sequence[memoryview], deadline_s: float) -> None:
        left = [part for part in parts if part.nbytes]
        if len(left) > 1 and sum(part.nbytes for part in left) <= _RECORD_BYTES:
            left = [memoryview(b"".join(left))]
        while left:
            _drop(
                left,
                self._retry_until_done(functools.partial(self._socket.send, left[0]), deadline_s),
            )

    def _retry_until_done(self, act: Callable[[], int], deadline_s: float) -> int:
        while True:
            try:
                with self._turn:
                    return act()
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            except OSError as error:
                raise lost(error) from error
            _wait_for(self._socket, wanted, deadline_s)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wait_for(sock: socket.socket, events: int, deadline_s: float) -> None:
    poll = select.poll()
    poll.register(sock, events)
    while True:
        left_s = deadline_s - time.monotonic()
        if poll.poll(max(0.0, min(left_s, LOOK_S)) * 1_000):
            return
        if left_s <= 0:
            said = "sent nothing" if events == select.POLLIN else "took nothing"
            raise DeadlineExceededError(f"the peer {said} in time")


def _drop(parts: list[memoryview], sent: int) -> None:
    """Removes the first `sent` bytes from `parts`."""
    while parts and sent >= parts[0].nbytes:
        sent -= parts.pop(0).nbytes
    if sent:
        parts[0] = parts[0][sent:]
