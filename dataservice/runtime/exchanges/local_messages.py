"""The small messages by which two processes on one host hand memory to each other.

One message is one packet of a Unix socket: a fixed head, then header bytes and perhaps a small
body. Larger parts lie in a segment of shared memory that the head names. Knows no sockets and no
memory. Invariant: `unpack(pack(...))` returns what was packed, and a packet that does not parse is
a DataLossError, never a default.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.message import Kind

_VERSION: Final = 2
_HEAD = struct.Struct("<BBBxIIIQQ")
_HAS_BODY: Final = 1
_IS_NEW: Final = 2
_IN_SEGMENT: Final = 4
_RELEASES: Final = 8

# Header and body together up to this size travel in the packet: a segment would cost more.
MAX_TEXT_BYTES: Final = 16 << 10
MAX_PACKET_BYTES: Final = MAX_TEXT_BYTES + _HEAD.size


_KINDS: Final = {kind.value: kind for kind in Kind}


class Packet(NamedTuple):
    """A parsed packet.

    `text` is the header and, after it, the body, unless the body is `in_segment`. In a segment the
    `body_bytes` of the body lie at `offset`, and the header after them if `text` is empty; `is_new`
    says that the segment's descriptor comes with the packet. `released` is a segment that goes back
    to the receiver of this packet, which had lent it; a packet of any kind may carry one.
    """

    kind: Kind
    header_bytes: int = 0
    body_bytes: int | None = None
    text: bytes = b""
    segment: int = 0
    offset: int = 0
    is_new: bool = False
    in_segment: bool = False
    released: int | None = None


def pack(
    kind: Kind,
    header_bytes: int = 0,
    body_bytes: int | None = None,
    text: bytes = b"",
    segment: int = 0,
    offset: int = 0,
    is_new: bool = False,
    in_segment: bool = False,
    released: int | None = None,
) -> bytes:
    """Encodes a packet of these fields, which are those of `Packet`."""
    flags = (_IS_NEW if is_new else 0) | (_IN_SEGMENT if in_segment else 0)
    if body_bytes is not None:
        flags |= _HAS_BODY
    if released is not None:
        flags |= _RELEASES
    numbers = (segment, released or 0, header_bytes, offset, body_bytes or 0)
    return _HEAD.pack(_VERSION, kind, flags, *numbers) + text


def unpack(data: bytes | memoryview) -> Packet:
    """Parses a packet; raises DataLossError if the bytes are no packet."""
    try:
        head = _HEAD.unpack_from(data)
        version, kind, flags, segment, released, header_bytes, offset, body_bytes = head
        if version != _VERSION:
            raise ValueError(f"version {version}, this side speaks {_VERSION}")
        if kind not in _KINDS:
            raise ValueError(f"kind {kind}")
        text = bytes(data[_HEAD.size :])
        in_segment = bool(flags & _IN_SEGMENT)
        allowed = (0, header_bytes) if in_segment else (header_bytes + body_bytes,)
        if len(text) not in allowed:
            raise ValueError(
                f"{len(text)} bytes of text for a header of {header_bytes} and a body of "
                f"{body_bytes}"
            )
    except (struct.error, ValueError) as error:
        raise DataLossError(f"damaged packet of {len(data)} bytes: {error}") from error
    return Packet(
        _KINDS[kind],
        header_bytes,
        body_bytes if flags & _HAS_BODY else None,
        text,
        segment,
        offset,
        bool(flags & _IS_NEW),
        in_segment,
        released if flags & _RELEASES else None,
    )
