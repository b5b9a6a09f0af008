"""Memory that two processes of one host map: made as sealed `memfd` files, lent, given back.

A sender makes segments and writes into them; a receiver maps them read-only and reads in place.
Each is anonymous, so a process that is killed leaves nothing behind: the kernel frees a segment
with its last mapping. Sealed against shrinking, so that a peer cannot take pages away from under
a reader, which would end the process by SIGBUS. Knows nothing of sockets or of what bodies mean.

A peer could write into a segment while it is read. It runs as the same user, who can do worse to
both; so there is no checksum either, as no network and no copy by others lies between.

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
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from dataservice.errors import DataLossError
from dataservice.runtime.segment_pool import HELD_BYTES, HELD_SEGMENTS

__all__ = ["Body", "Holdings", "OwnSegment", "PeerSegment", "is_supported"]

# One segment smaller than this waits to go back with the next message of its receiver: what a large
# step of training pulls or pushes, so that nobody is woken for that alone.
_CARRIED_BYTES: Final = 8 << 20
_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def is_supported() -> bool:
    """Whether this platform can hand over memory: Linux, in practice."""
    return (
        sys.platform == "linux"
        and hasattr(os, "memfd_create")
        and hasattr(socket, "SO_PEERCRED")
        and hasattr(select, "POLLRDHUP")
        and _SEALS != 0
    )


class Body(Protocol):
    """What writes itself where it is sent from, such as a record batch that encodes itself."""

    @property
    def room(self) -> int:
        """Bytes that `write_into` needs, at least."""

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        """Writes, and returns the first byte and the number of bytes of what is to be sent."""


class OwnSegment:
    """A segment that this side writes."""

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
        """Once the peer has it, the mapping is enough."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class PeerSegment:
    """A segment that the peer writes, mapped for reading."""

    def __init__(self, descriptor: int) -> None:
        """Maps and closes the descriptor. DataLossError unless it is a sealed memfd."""
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
    """Keeps a segment's mapping, and gives the segment back when the last reference ends."""

    __slots__ = ("_give_back", "_mapping", "_segment")

    def __init__(self, segment: int, mapping: pa.Buffer, give_back: Callable[[int], None]) -> None:
        self._segment = segment
        self._mapping = mapping
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self._segment)


class Holdings:
    """The peer's segments as this side uses them: what is read in place, and what goes back.

    `send` gives a segment back; it must not block: False when it cannot be done now.
    Collection may end a loan at any point of any thread, so `give_back` takes a lock that its own
    thread may hold already, and what `send` refuses waits for `flush`.

    One segment that nobody needs any more may go back with the next message, by `carry`, unless it
    is very large, and counts as held until then. So a peer that was asked something is not woken
    twice.
    """

    def __init__(self, send: Callable[[int], bool]) -> None:
        self._send = send
        self._segments: dict[int, PeerSegment] = {}
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self._refused: deque[int] = deque()
        self._carried: int | None = None
        self._closed = False
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """Capacity of the segments that are read in place."""
        return self._held_bytes

    def add(self, segment: int, descriptor: int) -> None:
        """Takes a new segment of the peer."""
        self._segments[segment] = PeerSegment(descriptor)

    def retire(self, segment: int) -> None:
        """The peer will not use it again."""
        self._segments.pop(segment, None)

    def span(self, segment: int, first: int, size: int) -> pa.Buffer:
        """Bytes of a segment, valid until it is given back."""
        known = self._segments.get(segment)
        if known is None or first + size > known.capacity:
            raise DataLossError(
                f"a peer names bytes {first}..{first + size} of segment {segment}, "
                f"{'which is unknown' if known is None else f'which has {known.capacity}'}"
            )
        return known.buffer.slice(first, size)

    def take(self, segment: int, first: int, size: int) -> pa.Buffer:
        """A body in place, or its copy where too much is in place already.

        The segment goes back when the buffer and all that was made of it are gone.
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
        """Sends a segment back that is not held. Never blocks."""
        with self._lock:
            if self._closed:
                return
            self._refused.append(segment)
        self.flush()

    def carry(self) -> int | None:
        """A segment that the next message gives back; who does not send it must `give_back`."""
        if self._carried is None:
            return None
        with self._lock:
            segment, self._carried = self._carried, None
            if segment is not None:
                self._held_bytes -= self._held.pop(segment, 0)
            return segment

    @property
    def owes(self) -> bool:
        """Whether `flush` is needed."""
        return bool(self._refused)

    def flush(self) -> bool:
        """Sends back what could not be before; whether some still could not be."""
        while self._refused:
            with self._lock:
                if not self._refused or self._closed:
                    return False
                segment = self._refused.popleft()
                # Collection may end a loan in here; it must not send the same one.
                if not self._send(segment):
                    self._refused.appendleft(segment)
                    return True
        return False

    def close(self) -> None:
        """Sends nothing any more; what is in use stays mapped until it is not. Idempotent."""
        with self._lock:
            self._closed = True
            self._carried = None
            self._segments.clear()
            self._refused.clear()

    def _end_loan(self, segment: int) -> None:
        with self._lock:
            if self._carried is None and self._held.get(segment, _CARRIED_BYTES) < _CARRIED_BYTES:
                self._carried = segment
                return
            self._held_bytes -= self._held.pop(segment, 0)
        self.give_back(segment)
