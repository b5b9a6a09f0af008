"""A connection between two processes of a host, through memory that they lend each other.

Both ends are alike: each sends headers with bodies, and each reads received bodies in place. A body
is written once, into a segment of the sender; then a packet of a few bytes says where it lies. Any
thread that waits for something reads the socket on behalf of all threads, one message at a time.
Messages that no thread has asked for stay in the socket, which gives back-pressure to the sender
and needs no copy. Knows nothing of commands, tokens or what bodies mean. Invariant: no wait
outlives its deadline, and `shut_down` ends all waits.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from typing import Any, ClassVar, Final

import pyarrow as pa

from dataservice.errors import (
    DataLossError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.runtime.exchanges.bodies import AnyBody, contiguous, room_for, write_into
from dataservice.runtime.exchanges.local_messages import MAX_TEXT_BYTES, Packet, pack
from dataservice.runtime.exchanges.message import Kind, Received
from dataservice.runtime.exchanges.owned_socket import LOOK_S
from dataservice.runtime.exchanges.packet_socket import PacketSocket
from dataservice.runtime.exchanges.segment_pool import SegmentPool
from dataservice.runtime.exchanges.shared_memory import OwnSegment, PeerSegments
from dataservice.vocabulary import SHARED_MEMORY

logger = logging.getLogger(__name__)


# A sender reads the peer's messages into the inbox only up to this number, unless it needs a
# segment back.
_MAX_UNCLAIMED: Final = 16
# After this many sends without a read, a sender checks whether the peer has sent something.
_MAX_UNANSWERED: Final = 8
_EMPTY: Final = pa.py_buffer(b"")


class LocalConnection:
    """One end of a connected packet socket, which it owns; see `connection_exchange.Connection`."""

    protocol: ClassVar[str] = SHARED_MEMORY
    shares_memory: ClassVar[bool] = True

    def __init__(self, sock: socket.socket) -> None:
        self._packets = PacketSocket(sock)
        self._pool = SegmentPool()
        self._own: dict[int, OwnSegment] = {}
        self._peer_segments = PeerSegments(self._packets.release)
        self._inbox: deque[Received] = deque()
        self._peer_ended = False
        self.peer_error: bytes | None = None
        self._failure: DataLossError | UnavailableError | None = None
        self._send_lock = threading.Lock()
        # Acquired directly and not through the condition, which is slower as it is Python code.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        self._waiters = 0
        self._unanswered = 0

    # Sending

    def send(
        self,
        kind: Kind,
        header: bytes = b"",
        body: AnyBody | None = None,
        *,
        deadline_s: float,
    ) -> None:
        """Waits while the peer holds too much memory or does not read; sends all or nothing."""
        with self._send_lock:
            if self._failure is not None:
                raise self._failure
            if self._peer_segments.pending:
                self._peer_segments.flush()
            self._unanswered += 1
            if self._unanswered > _MAX_UNANSWERED:
                self._read_arrived(deadline_s)
            room = room_for(header, body)
            released = self._peer_segments.carry()
            try:
                if room <= MAX_TEXT_BYTES:
                    self._send_as_text(kind, header, body, released, deadline_s)
                else:
                    self._send_in_segment(kind, header, body, room, released, deadline_s)
            except BaseException:
                if released is not None:
                    self._peer_segments.give_back(released)
                raise

    def _read_arrived(self, deadline_s: float) -> None:
        """Reads what the peer has sent, such as the segments that it gives back."""
        with self._lock:
            if len(self._inbox) < _MAX_UNCLAIMED:
                self._read_locked(deadline_s, wait=False)

    def _send_as_text(
        self, kind: Kind, header: bytes, body: Any, released: int | None, deadline_s: float
    ) -> None:
        text, body_bytes = header, None
        if body is not None:
            data = bytes(contiguous(body))
            text, body_bytes = header + data, len(data)
        packet = pack(kind, len(header), body_bytes, text, released=released)
        self._packets.send(packet, self._peer_segments, deadline_s)

    def _send_in_segment(
        self,
        kind: Kind,
        header: bytes,
        body: Any,
        room: int,
        released: int | None,
        deadline_s: float,
    ) -> None:
        segment, is_new = self._obtain(room, deadline_s)
        own = self._own[segment]
        try:
            first, body_bytes = (0, None) if body is None else write_into(body, own.buffer)
            text = header
            if len(header) > MAX_TEXT_BYTES:
                end = first + (body_bytes or 0)
                memoryview(own.buffer).cast("B")[end : end + len(header)] = header
                text = b""
            packet = pack(
                kind, len(header), body_bytes, text, segment, first, is_new, True, released
            )
            self._packets.send(packet, self._peer_segments, deadline_s, own.descriptor)
        except BaseException:
            self._take_back(segment, is_new)
            raise
        if is_new:
            own.forget_descriptor()

    def _obtain(self, room: int, deadline_s: float) -> tuple[int, bool]:
        """Returns a segment for `room` bytes, which then counts as lent, and whether it is new."""
        with self._lock:
            segment = self._pool.reuse(room)
            if segment is not None:
                return segment, False
            if len(self._inbox) < _MAX_UNCLAIMED:
                self._read_locked(deadline_s, wait=False)
            while (place := self._pool.allocate(room)) is None:
                self._read_locked(deadline_s, wait=True)
            for retired in place.retired:
                self._own.pop(retired)
        for retired in place.retired:
            packet = pack(Kind.RETIRE, segment=retired)
            self._packets.send(packet, self._peer_segments, deadline_s)
        if place.is_new:
            try:
                self._own[place.segment] = OwnSegment(place.capacity)
            except BaseException:
                self._take_back(place.segment, True)
                raise
        return place.segment, place.is_new

    def _take_back(self, segment: int, is_new: bool) -> None:
        """Takes a segment back whose packet was not sent.

        A new segment is dropped, since the peer does not know it.
        """
        with self._lock:
            self._pool.release(segment)
            if is_new:
                self._pool.drop(segment)
                own = self._own.pop(segment, None)
                if own is not None:
                    own.forget_descriptor()

    # Receiving

    def receive(self, deadline_s: float) -> Received | None:
        with self._lock:
            while not self._inbox:
                if self._peer_ended:
                    return None
                self._read_locked(deadline_s, wait=True)
            return self._inbox.popleft()

    @property
    def may_rest(self) -> bool:
        # The peer may need these segments before it can send, and had no room for them.
        return not self._peer_segments.pending

    def fileno(self) -> int:
        return self._packets.fileno()

    def await_close(self, deadline_s: float) -> None:
        try:
            while True:
                with self._lock:
                    self._inbox.clear()
                    self._read_locked(deadline_s, wait=True)
        except (UnavailableError, DeadlineExceededError, DataLossError) as ended:
            logger.debug("a connection came to its end: %s", ended)

    def is_gone(self) -> bool:
        return self._failure is not None or self._packets.is_gone()

    def _read_locked(self, deadline_s: float, *, wait: bool) -> None:
        """Reads what has arrived, with the lock held; with `wait`, waits until anything has.

        Leaves the reading to another thread if one is reading already. Releases the lock to wait.
        """
        others = self._reading
        if others and wait:
            self._wait_for_reader(deadline_s)
        if self._failure is not None:
            raise self._failure
        if others:
            return
        self._reading = True
        try:
            if not wait:
                self._read_to_next_message()
                return
            self._lock.release()
            try:
                packet = self._packets.receive(self._peer_segments, deadline_s)
            finally:
                self._lock.acquire()
            self._handle_packet(*packet)
        except (DataLossError, UnavailableError) as error:
            self._failure = self._failure or error
            raise
        finally:
            self._reading = False
            self._unanswered = 0
            if self._waiters:
                self._changed.notify_all()

    def _wait_for_reader(self, deadline_s: float) -> None:
        """Waits until the thread that reads the socket has read something."""
        self._waiters += 1
        try:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not self._changed.wait(min(left_s, threading.TIMEOUT_MAX)):
                raise DeadlineExceededError("nothing came from the peer in time")
        finally:
            self._waiters -= 1

    def _read_to_next_message(self) -> None:
        """Reads the packets that have arrived, up to the next message.

        Reading all of them might never end, if messages arrive as fast as they are read.
        """
        known = len(self._inbox)
        while len(self._inbox) == known:
            packet = self._packets.try_receive(at_once=True)
            if packet is None:
                return
            self._handle_packet(*packet)

    def _handle_packet(self, packet: Packet, descriptor: int | None) -> None:
        if descriptor is not None:
            self._peer_segments.add(packet.segment, descriptor)
        if packet.released is not None:
            self._pool.release(packet.released)
        if packet.kind is Kind.RELEASE:
            self._pool.release(packet.segment)
        elif packet.kind is Kind.RETIRE:
            self._peer_segments.retire(packet.segment)
        elif packet.kind is Kind.DONE:
            self._peer_ended = True
        else:
            received = self._received(packet)
            self._inbox.append(received)
            if received.kind is Kind.ERROR:
                self.peer_error = received.header

    def _received(self, packet: Packet) -> Received:
        if not packet.in_segment:
            header = packet.text[: packet.header_bytes]
            body = packet.text[packet.header_bytes :]
            return Received(
                packet.kind, header, None if packet.body_bytes is None else pa.py_buffer(body)
            )
        header = packet.text
        if packet.header_bytes and not header:
            first = packet.offset + (packet.body_bytes or 0)
            header = self._peer_segments.span(
                packet.segment, first, packet.header_bytes
            ).to_pybytes()
        if not packet.body_bytes:
            self._peer_segments.give_back(packet.segment)
            return Received(packet.kind, header, None if packet.body_bytes is None else _EMPTY)
        body = self._peer_segments.take(packet.segment, packet.offset, packet.body_bytes)
        return Received(packet.kind, header, body)

    def trust(self) -> None:
        """Does nothing: the peer is a process of this user."""

    # Ending

    def shut_down(self) -> None:
        self._packets.shut_down()

    def close(self) -> None:
        self.shut_down()
        with self._send_lock, self._lock:
            self._waiters += 1
            while self._reading:
                self._changed.wait(LOOK_S)
            self._waiters -= 1
            # Replaced, since the traceback of an error that was raised keeps bodies and this
            # connection alive.
            self._failure = UnavailableError("the connection is closed")
            self._peer_segments.close()
            self._inbox.clear()
            self._packets.close()
            for segment in self._own.values():
                segment.forget_descriptor()
            self._own.clear()
            self._changed.notify_all()
