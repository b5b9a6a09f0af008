"""A connection between two processes by TCP, with bodies that land where they stay.

Both ends are alike. A message is written from where it lies; what comes of a body is received into
memory of its own, so that it is copied by the kernel alone. Knows nothing of commands, tokens or
what bodies mean. Invariant: no wait outlives its deadline, and `shut_down` ends all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

import pyarrow as pa

from dataservice.errors import (
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.runtime.byte_streams import ByteStream
from dataservice.runtime.local_bodies import write_into
from dataservice.runtime.message import Kind, Received, check_header, check_size
from dataservice.runtime.shared_memory import Body
from dataservice.runtime.socket_messages import Incoming, head_of

__all__ = ["SocketConnection"]

logger = logging.getLogger(__name__)

_DISCARDED_BYTES: Final = 16 << 10
# Who sends so often without reading looks whether the peer has said something.
_MAX_UNANSWERED: Final = 8


class SocketConnection:
    """An end of `stream`, which it owns; see `connection_exchange.Connection`.

    `trusted`: the peer is whom this side wanted to talk to. Else it may send a short header, until
    `trust`.
    """

    protocol: ClassVar[str] = "tcp"
    shares_memory: ClassVar[bool] = False

    def __init__(self, stream: ByteStream, *, trusted: bool) -> None:
        self.peer_error: bytes | None = None
        self._stream = stream
        self._incoming = Incoming(trusted=trusted)
        self._ahead: Received | None = None  # of what was looked at and nobody has received
        self._peer_ended = False
        self._unanswered = 0
        # Of what comes, and of what is sent: who hears nonsense can still say so.
        self._failure: DataServiceError | None = None
        self._broken: DataServiceError | None = None
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def trust(self) -> None:
        """The peer has shown the token."""
        self._incoming.trust()

    def send(
        self,
        kind: Kind,
        header: bytes = b"",
        body: pa.Buffer | bytes | Body | None = None,
        *,
        deadline_s: float,
    ) -> None:
        """Sends one message; waits while the peer takes no more.

        DeadlineExceededError at `deadline_s` of the monotonic clock: nothing more can be sent then.
        """
        check_header(header)
        content = None if body is None else memoryview(_buffer_of(body)).cast("B")
        size = None if content is None else content.nbytes
        check_size(size or 0)
        text = memoryview(head_of(kind, len(header), size) + header)
        with _held(self._sending, deadline_s):
            if self._broken is not None:
                raise self._broken
            self._unanswered += 1
            if self._unanswered > _MAX_UNANSWERED:
                self._look()
            # What is sent to an end that is closed is lost unsaid.
            if self._stream.is_gone():
                raise UnavailableError("the peer closed the connection")
            # Whatever breaks a message off in the middle, the peer can make nothing of the next.
            self._broken = UnavailableError("a message was broken off")
            self._stream.send([text] if content is None else [text, content], deadline_s)
            self._broken = None

    def receive(self, deadline_s: float) -> Received | None:
        """The next message, None when the peer has finished sending.

        DeadlineExceededError when there was none in time; what has come of one is kept.
        """
        with _held(self._receiving, deadline_s):
            if self._peer_ended:
                return None
            received = self._ahead or self._next(deadline_s)
            self._ahead = None
            if received.kind is Kind.DONE:
                self._peer_ended = True
                return None
            return received

    def _look(self) -> None:
        """Whether the peer has said that it is over: for who sends on and on."""
        if not self._receiving.acquire(blocking=False):
            return
        try:
            self._ahead = self._ahead or self._next(time.monotonic())
        except DataServiceError as error:  # which whoever receives is told
            logger.debug("nothing can be heard for now: %s", error)
        finally:
            self._receiving.release()

    def _next(self, deadline_s: float) -> Received:
        incoming = self._incoming
        self._unanswered = 0
        if self._failure is not None:
            raise self._failure
        try:
            while (received := incoming.take()) is None:
                size = self._stream.receive(incoming.room, deadline_s, whole=incoming.is_exact)
                incoming.add(size)
        except DeadlineExceededError:
            raise
        except DataServiceError as error:
            self._failure = error
            raise
        except BaseException:
            # What was taken from the stream may be lost, so where the next message begins is.
            self._failure = UnavailableError("a message was broken off")
            raise
        if received.kind is Kind.ERROR:
            self.peer_error = received.header
        return received

    def await_close(self, deadline_s: float) -> None:
        """Until the peer has closed its end, dropping what it still sends.

        An end that is closed while something lies unread takes with it what the peer had not read.
        """
        dropped = memoryview(bytearray(_DISCARDED_BYTES))
        try:
            with _held(self._receiving, deadline_s):
                while time.monotonic() < deadline_s:
                    self._stream.receive(dropped, deadline_s, whole=False)
        except (UnavailableError, DeadlineExceededError) as ended:
            logger.debug("a connection came to its end: %s", ended)

    def is_gone(self) -> bool:
        """Whether the peer closed its end, or this one was shut down; does not read."""
        return self._failure is not None or self._stream.is_gone()

    def shut_down(self) -> None:
        """Ends all calls, here and at the peer, from any thread. Idempotent."""
        self._stream.shut_down()

    def close(self) -> None:
        """Frees the socket once other calls have ended; bodies that were received stay valid."""
        self.shut_down()
        with self._sending, self._receiving:
            self._failure = self._broken = UnavailableError("the connection is closed")
            self._stream.close()


@contextmanager
def _held(lock: threading.Lock, deadline_s: float) -> Iterator[None]:
    left_s = min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
    if not lock.acquire(timeout=left_s):
        raise DeadlineExceededError("another thread used the connection until the time-out")
    try:
        yield
    finally:
        lock.release()


def _buffer_of(body: pa.Buffer | bytes | Body) -> pa.Buffer | bytes:
    if isinstance(body, pa.Buffer | bytes):
        return body
    target = pa.allocate_buffer(body.room)
    first, size = write_into(body, target)
    return target.slice(first, size)
