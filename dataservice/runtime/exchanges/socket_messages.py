"""Messages as bytes of a stream: how they are written, and reassembled as they arrive.

A fixed head gives the kind of a message and the lengths of its header and body, which follow it.
Bodies are received into their final place. Knows no sockets. Invariant: the same messages come out
wherever the stream is cut, and bytes that do not parse are a DataLossError, never a default.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.message import MAX_BODY_BYTES, MAX_HEADER_BYTES, Kind, Received

# Differs from the first byte that a client of TLS or of HTTP/2 sends.
_VERSION: Final = 0xD1
_HEAD: Final = struct.Struct("<BBBxIQ")
_HAS_BODY: Final = 1
HEAD_BYTES: Final = _HEAD.size
_KINDS: Final = {kind.value: kind for kind in (Kind.OPEN, Kind.MESSAGE, Kind.DONE, Kind.ERROR)}
# The limit for a peer that has not shown the token: enough for a token and a command.
STRANGER_HEADER_BYTES: Final = 64 << 10
# Short messages arrive in one call. Of a longer message, at most this much is copied.
_SCRATCH_BYTES: Final = 16 << 10
_EMPTY: Final = pa.py_buffer(b"")


def head_of(kind: Kind, header_bytes: int, body_bytes: int | None) -> bytes:
    """Encodes the head of a message; `body_bytes` is None for a message without a body."""
    flags = 0 if body_bytes is None else _HAS_BODY
    return _HEAD.pack(_VERSION, kind, flags, header_bytes, body_bytes or 0)


class MessageParser:
    """The parser of the bytes received from a stream. Not thread safe.

    The caller puts received bytes into `room`, reports their number by `add`, and gets messages
    from `take`. A peer that is not trusted may send only a short header and no body, until `trust`.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = self._stop = 0
        self._kind: Kind | None = None  # of the message that is being received
        self._header = bytearray()
        self._body: pa.Buffer | None = None
        self._parts: list[memoryview] = []  # room for the parts of it that have not arrived

    def trust(self) -> None:
        """Notes that the peer has shown the token."""
        self._trusted = True

    @property
    def room(self) -> memoryview:
        """The memory for the next bytes; not empty after `take` has returned None."""
        if self._parts:
            return self._parts[0]
        return self._scratch[self._stop :]

    @property
    def is_exact(self) -> bool:
        """True if the stream will fill all of `room`."""
        return bool(self._parts)

    @property
    def has_begun(self) -> bool:
        """True if a part of the next message, or all of it, has arrived."""
        return self._kind is not None or self._start < self._stop

    def add(self, size: int) -> None:
        """Notes that `size` bytes were put into `room`."""
        if self._parts:
            self._fill(size)
        else:
            self._stop += size

    def take(self) -> Received | None:
        """Returns the next message if it is complete, else None.

        Raises DataLossError if the bytes do not parse.
        """
        if self._kind is None:
            if self._stop - self._start < HEAD_BYTES:
                self._make_room()
                return None
            self._begin()
        if self._parts:
            return None
        assert self._kind is not None
        received = Received(self._kind, bytes(self._header), self._body)
        self._kind, self._body = None, None
        return received

    def _begin(self) -> None:
        """Parses a head, and stores the bytes that have arrived after it."""
        version, kind, flags, header_bytes, body_bytes = _HEAD.unpack_from(
            self._scratch, self._start
        )
        has_body = flags == _HAS_BODY
        if version != _VERSION or kind not in _KINDS or flags not in (0, _HAS_BODY):
            head = bytes(self._scratch[self._start : self._start + HEAD_BYTES])
            raise DataLossError(f"a peer speaks another protocol: it sent {head!r} for a message")
        self._check_sizes(header_bytes, body_bytes, has_body)
        self._header = bytearray(header_bytes)
        self._body = _EMPTY if has_body else None
        self._parts = [memoryview(self._header)] if header_bytes else []
        if body_bytes:
            self._body = pa.allocate_buffer(body_bytes)
            self._parts.append(memoryview(self._body).cast("B"))
        self._start += HEAD_BYTES
        self._kind = _KINDS[kind]
        while self._parts and self._start < self._stop:
            size = min(len(self._parts[0]), self._stop - self._start)
            self._parts[0][:size] = self._scratch[self._start : self._start + size]
            self._start += size
            self._fill(size)

    def _check_sizes(self, header_bytes: int, body_bytes: int, has_body: bool) -> None:
        most = (MAX_HEADER_BYTES, MAX_BODY_BYTES) if self._trusted else (STRANGER_HEADER_BYTES, 0)
        if header_bytes > most[0] or body_bytes > most[1] or (body_bytes and not has_body):
            raise DataLossError(
                f"a peer announced a header of {header_bytes} and a body of {body_bytes} bytes; "
                f"it may send {most[0]} and {most[1]}"
            )

    def _fill(self, size: int) -> None:
        part = self._parts[0]
        if size == len(part):
            del self._parts[0]
        else:
            self._parts[0] = part[size:]

    def _make_room(self) -> None:
        """Moves a partly received head to the front, so that there is room for its rest."""
        size = self._stop - self._start
        self._scratch[:size] = bytes(self._scratch[self._start : self._stop])
        self._start, self._stop = 0, size
