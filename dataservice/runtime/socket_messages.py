"""Messages as bytes of a stream: how they are written, and put together again as they come.

A fixed head says of what kind a message is and how long its header and its body are; both follow.
What comes of a body lands where it stays. Knows nothing of sockets. Invariant: the same messages
come out wherever the stream is cut, and what does not parse is DataLossError, never a default.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from dataservice.errors import DataLossError
from dataservice.runtime.message import MAX_BODY_BYTES, MAX_HEADER_BYTES, Kind, Received

__all__ = ["HEAD_BYTES", "STRANGER_HEADER_BYTES", "Incoming", "head_of"]

# Differs from what a client of TLS or of HTTP/2 says first.
_VERSION: Final = 0xD1
_HEAD: Final = struct.Struct("<BBBxIQ")
_HAS_BODY: Final = 1
HEAD_BYTES: Final = _HEAD.size
_KINDS: Final = {kind.value: kind for kind in (Kind.OPEN, Kind.MESSAGE, Kind.DONE, Kind.ERROR)}
# Of who has not shown a token: a token and a command.
STRANGER_HEADER_BYTES: Final = 64 << 10
# Short messages come by one call; of a longer one this much is copied.
_SCRATCH_BYTES: Final = 16 << 10
_EMPTY: Final = pa.py_buffer(b"")


def head_of(kind: Kind, header_bytes: int, body_bytes: int | None) -> bytes:
    """What comes before a header and a body; `body_bytes` None for a message without one."""
    flags = 0 if body_bytes is None else _HAS_BODY
    return _HEAD.pack(_VERSION, kind, flags, header_bytes, body_bytes or 0)


class Incoming:
    """What has come of a stream. Not thread safe.

    Whoever receives puts bytes into `room`, says how many by `add`, and asks `take` for messages.
    A stranger, until `trust`, may send a short header and no body.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = self._stop = 0
        self._kind: Kind | None = None  # of the message that is coming
        self._header = bytearray()
        self._body: pa.Buffer | None = None
        self._parts: list[memoryview] = []  # room for what has not come of it

    def trust(self) -> None:
        """The peer has shown the token."""
        self._trusted = True

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong; never empty once `take` has given None."""
        if self._parts:
            return self._parts[0]
        return self._scratch[self._stop :]

    @property
    def is_exact(self) -> bool:
        """Whether all that fits into `room` will come."""
        return bool(self._parts)

    def add(self, size: int) -> None:
        """So many bytes were put into `room`."""
        if self._parts:
            self._fill(size)
        else:
            self._stop += size

    def take(self) -> Received | None:
        """The next message that is whole; DataLossError where the stream makes no sense."""
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
        """Reads a head, and what has come after it."""
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
        """Moves what has come of a head to where there is room for the rest."""
        size = self._stop - self._start
        self._scratch[:size] = bytes(self._scratch[self._start : self._stop])
        self._start, self._stop = 0, size
