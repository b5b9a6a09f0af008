"""A connection between two processes by TCP, whose bodies are received into their final place.

Both ends are alike. A message is sent from where it lies, and each body is received into memory of
its own, so that only the kernel copies it. Knows nothing of commands, tokens or what bodies mean.
Invariant: no wait outlives its deadline, and `shut_down` ends all waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from dataservice.errors import (
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.runtime.exchanges.bodies import AnyBody, contiguous
from dataservice.runtime.exchanges.byte_streams import ByteStream
from dataservice.runtime.exchanges.message import Kind, Received, check_sizes
from dataservice.runtime.exchanges.socket_messages import MessageParser, head_of

logger = logging.getLogger(__name__)

_DISCARDED_BYTES: Final = 16 << 10
# After this many sends without a read, a sender checks whether the peer has sent something.
_MAX_UNANSWERED: Final = 8


class SocketConnection:
    """One end of `stream`, which it owns; see `connection_exchange.Connection`.

    `trusted`: this side has chosen the peer. A peer that is not trusted may send only a short
    header and no body, until `trust` is called.
    """

    protocol: ClassVar[str] = "tcp"
    shares_memory: ClassVar[bool] = False

    def __init__(self, stream: ByteStream, *, trusted: bool) -> None:
        self.peer_error: bytes | None = None
        self._stream = stream
        self._parser = MessageParser(trusted=trusted)
        self._ahead: Received | None = None  # read by `_read_ahead`, and not received yet
        self._peer_ended = False
        self._unanswered = 0
        # The failures of receiving and of sending, kept apart so that an end that receives
        # nonsense can still send an error.
        self._failure: DataServiceError | None = None
        self._broken: DataServiceError | None = None
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def trust(self) -> None:
        self._parser.trust()

    def send(
        self,
        kind: Kind,
        header: bytes = b"",
        body: AnyBody | None = None,
        *,
        deadline_s: float,
    ) -> None:
        """Nothing more can be sent after the deadline, unless the time went to another sender."""
        content = None if body is None else memoryview(contiguous(body)).cast("B")
        size = None if content is None else content.nbytes
        check_sizes(len(header), size or 0)
        text = memoryview(head_of(kind, len(header), size) + header)
        with _held(self._sending, deadline_s):
            if self._broken is not None:
                raise self._broken
            self._unanswered += 1
            if self._unanswered > _MAX_UNANSWERED:
                self._read_ahead()
            # Checked first, since data sent to a closed end is lost without an error.
            if self._stream.is_gone():
                raise UnavailableError("the peer closed the connection")
            # If anything breaks this message off in the middle, the peer cannot parse the next one.
            self._broken = UnavailableError("a message was broken off")
            self._stream.send([text] if content is None else [text, content], deadline_s)
            self._broken = None

    def receive(self, deadline_s: float) -> Received | None:
        """Keeps the part of a message that has arrived if the rest does not in time."""
        with _held(self._receiving, deadline_s):
            if self._peer_ended:
                return None
            received = self._ahead or self._next(deadline_s)
            self._ahead = None
            if received.kind is Kind.DONE:
                self._peer_ended = True
                return None
            return received

    @property
    def may_rest(self) -> bool:
        return not self._parser.has_begun

    def fileno(self) -> int:
        return self._stream.fileno()

    def _read_ahead(self) -> None:
        """Reads a message ahead if one has arrived, so that a sender notices an ERROR.

        Does nothing while another thread receives.
        """
        if not self._receiving.acquire(blocking=False):
            return
        try:
            self._ahead = self._ahead or self._next(time.monotonic())
        except DataServiceError as error:  # the next `receive` raises it
            logger.debug("nothing can be heard for now: %s", error)
        finally:
            self._receiving.release()

    def _next(self, deadline_s: float) -> Received:
        parser = self._parser
        self._unanswered = 0
        if self._failure is not None:
            raise self._failure
        try:
            while (received := parser.take()) is None:
                size = self._stream.receive(parser.room, deadline_s, whole=parser.is_exact)
                parser.add(size)
        except DeadlineExceededError:
            raise
        except DataServiceError as error:
            self._failure = error
            raise
        except BaseException:
            # Bytes taken from the stream may be lost, so the next message cannot be found.
            self._failure = UnavailableError("a message was broken off")
            raise
        if received.kind is Kind.ERROR:
            self.peer_error = received.header
        return received

    def await_close(self, deadline_s: float) -> None:
        dropped = memoryview(bytearray(_DISCARDED_BYTES))
        try:
            with _held(self._receiving, deadline_s):
                while time.monotonic() < deadline_s:
                    self._stream.receive(dropped, deadline_s, whole=False)
        except (UnavailableError, DeadlineExceededError) as ended:
            logger.debug("a connection came to its end: %s", ended)

    def is_gone(self) -> bool:
        return self._failure is not None or self._stream.is_gone()

    def shut_down(self) -> None:
        self._stream.shut_down()

    def close(self) -> None:
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
