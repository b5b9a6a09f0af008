"""Memory that two processes of one host map: made as sealed `memfd` files, lent, given back.

A sender makes segments and writes into them; a receiver maps them read-only and reads in place.
Segments are anonymous, so a process that is killed leaves nothing behind: the kernel frees a
segment with its last mapping. They are sealed against shrinking, so that a peer cannot remove pages
under a reader, which would end the reader's process by SIGBUS. Knows no sockets, nor what bodies
mean.

A peer could write into a segment while it is read. But the peer runs as the same user, who can do
worse to both processes. There is no checksum either, since no network lies between the two.

Invariant: a segment is given back exactly once, when nothing refers to its bytes any more.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.segment_pool import HELD_BYTES, HELD_SEGMENTS

# One segment smaller than this goes back with the receiver's next message, so that the peer is not
# woken for the return alone. The bound covers what a large step of training pulls or pushes.
_CARRIED_BYTES: Final = 8 << 20
_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def is_supported() -> bool:
    """True if this platform can share memory this way: Linux, in practice."""
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and hasattr(socket, "SO_PEERCRED")
        and hasattr(select, "POLLRDHUP")
        and _SEALS != 0
    )


class OwnSegment:
    """A segment that this side writes; made with the given capacity."""

    def __init__(self, capacity: int) -> None:
        self.descriptor: int | None = os.memfd_create(
            "dataservice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        )
        try:
            os.ftruncate(self.descriptor, capacity)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            self.buffer = pa.py_buffer(mmap.mmap(self.descriptor, capacity))
        except BaseException:
            self.forget_descriptor()
            raise

    def forget_descriptor(self) -> None:
        """Closes the descriptor; once the peer has it, the mapping is enough. Idempotent."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class PeerSegment:
    """A segment that the peer writes, mapped for reading."""

    def __init__(self, descriptor: int) -> None:
        """Maps the segment and closes `descriptor`; raises DataLossError unless a sealed memfd."""
        try:
            status = os.fstat(descriptor)
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if not stat.S_ISREG(status.st_mode) or seals & _SEALS != _SEALS or not status.st_size:
                raise DataLossError(
                    f"a peer sent a segment of {status.st_size} bytes with the seals {seals:#x}"
                )
            self.capacity = status.st_size
            self.buffer = pa.py_buffer(
                mmap.mmap(descriptor, self.capacity, mmap.MAP_SHARED, mmap.PROT_READ)
            )
        except OSError as error:
            raise DataLossError(f"a peer sent a segment that cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)


class _Loan:
    """A reference to a segment's mapping that gives the segment back when it is destroyed."""

    __slots__ = ("_give_back", "_mapping", "_segment")

    def __init__(self, segment: int, mapping: pa.Buffer, give_back: Callable[[int], None]) -> None:
        self._segment = segment
        self._mapping = mapping
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self._segment)


class PeerSegments:
    """The peer's segments on this side: those read in place, and those that must go back.

    `send` gives a segment back. It must not block, and returns False if that is not possible now;
    the segment then waits for `flush`. Garbage collection may end a loan at any point of any
    thread, so `give_back` uses a reentrant lock.

    One unused segment, unless it is very large, waits to go back with the next message, by `carry`,
    and counts as held until then. So a peer that waits for a reply is not woken twice.
    """

    def __init__(self, send: Callable[[int], bool]) -> None:
        self._send = send
        self._segments: dict[int, PeerSegment] = {}
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self.pending: deque[int] = deque()
        """The segments that could not be sent back yet: if there are any, `flush` is needed."""
        self._carried: int | None = None
        self._closed = False
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """The capacity of the segments that are read in place."""
        return self._held_bytes

    def add(self, segment: int, descriptor: int) -> None:
        """Maps a new segment of the peer."""
        self._segments[segment] = PeerSegment(descriptor)

    def retire(self, segment: int) -> None:
        """Forgets a segment that the peer will not use again."""
        self._segments.pop(segment, None)

    def span(self, segment: int, first: int, size: int) -> pa.Buffer:
        """Returns bytes of a segment, valid until the segment is given back.

        Raises DataLossError for an unknown segment or bytes outside of it.
        """
        known = self._segments.get(segment)
        if known is None or first + size > known.capacity:
            raise DataLossError(
                f"a peer names bytes {first}..{first + size} of segment {segment}, "
                f"{'which is unknown' if known is None else f'which has {known.capacity}'}"
            )
        return known.buffer.slice(first, size)

    def take(self, segment: int, first: int, size: int) -> pa.Buffer:
        """Returns a body in place, or a copy of it if too much memory is held already.

        The segment goes back when the buffer, and everything that refers to it, is gone.
        """
        body = self.span(segment, first, size)
        known = self._segments[segment]
        with self._lock:
            has_room = (
                self._held_bytes + known.capacity <= HELD_BYTES and len(self._held) < HELD_SEGMENTS
            )
            if has_room:
                self._held[segment] = known.capacity
                self._held_bytes += known.capacity
        if has_room:
            loan = _Loan(segment, known.buffer, self._end_loan)
            return pa.foreign_buffer(body.address, size, base=loan)
        copy: Any = pa.allocate_buffer(size)
        np.copyto(np.frombuffer(copy, np.uint8), np.frombuffer(body, np.uint8))
        self.give_back(segment)
        return copy

    def give_back(self, segment: int) -> None:
        """Sends back a segment that is not held. Never blocks."""
        with self._lock:
            if self._closed:
                return
            self.pending.append(segment)
        self.flush()

    def carry(self) -> int | None:
        """Returns the segment to give back with the next message, None if there is none.

        A caller that does not send it must `give_back` it.
        """
        if self._carried is None:
            return None
        with self._lock:
            segment, self._carried = self._carried, None
            if segment is not None:
                self._held_bytes -= self._held.pop(segment, 0)
            return segment

    def flush(self) -> bool:
        """Sends back the segments that could not be sent before; returns whether some are left."""
        while self.pending:
            with self._lock:
                if not self.pending or self._closed:
                    return False
                segment = self.pending.popleft()
                # Taken out of the queue first: garbage collection may end a loan during the send
                # and enter `flush` again, which must not send the same segment.
                if not self._send(segment):
                    self.pending.appendleft(segment)
                    return True
        return False

    def close(self) -> None:
        """Stops giving segments back; a segment in use stays mapped while it is. Idempotent."""
        with self._lock:
            self._closed = True
            self._carried = None
            self._segments.clear()
            self.pending.clear()

    def _end_loan(self, segment: int) -> None:
        with self._lock:
            if self._carried is None and self._held.get(segment, _CARRIED_BYTES) < _CARRIED_BYTES:
                self._carried = segment
                return
            self._held_bytes -= self._held.pop(segment, 0)
        self.give_back(segment)
