"""Long messages over Flight: large arrays go ahead of their message, in pieces.

So that rows are looked up, and copied to where they are wanted, while others are on the wire; and
arrays that are there already are sent from where they are. Knows bodies, nothing of what is in
them, nor of who sends. Invariant: nothing of a message is there for its receiver before all of it
is; a stream that breaks in the middle leaves nothing.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa

from dataservice.runtime.exchange import MAX_BODY_BYTES
from dataservice.runtime.flight import Message
from pstrain.errors import DataLossError
from pstrain.paramserver.messages import (
    Body,
    LateBody,
    Received,
    SplitBody,
    bytes_of,
    is_large,
    part_bytes,
    reused_buffer,
)

PIECE_BYTES: Final = 1 << 20

_MARK: Final = b"\0piece"
_PLACE: Final = struct.Struct("<QQ")

Send = Callable[[bytes, pa.Buffer | None], None]


class Arrived(NamedTuple):
    """A message that came over Flight or through shared memory."""

    header: bytes
    body: Received


def send(send_one: Send, header: bytes, body: Body) -> None:
    """Sends a message as one, or, where it is long, its large arrays ahead of the rest."""
    if not isinstance(body, LateBody):
        send_one(header, body)
        return
    large = [part for part, each in enumerate(body.parts) if is_large(each)]
    for part in large:
        _send_array(send_one, body, part)
    rest = body.without(large) if large else body
    send_one(header, rest.to_buffer() if rest is not None else None)


def _send_array(send_one: Send, body: LateBody, part: int) -> None:
    """Whole where it is there already: then its receiver uses it where it arrives."""
    size, rows = part_bytes(body.parts[part]), body.parts[part][1][0]
    pieces = 1 if body.arrays[part] is not None else -(-size // PIECE_BYTES)
    at = 0
    for start, stop in _even(rows, pieces):
        piece = body.rows(part, start, stop)
        send_one(_MARK + _PLACE.pack(size, at), piece)
        at += piece.size


def _even(rows: int, pieces: int) -> list[tuple[int, int]]:
    edges = [rows * piece // pieces for piece in range(pieces + 1)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def receive(receive_one: Callable[[], Message | None]) -> Arrived | None:
    """The next whole message; None where the stream ended before one was."""
    arrays: list[_Array] = []
    while (message := receive_one()) is not None:
        if not message.header.startswith(_MARK):
            return _whole(message, arrays)
        size, at = _place(message.header)
        if at == 0:
            arrays.append(_Array(size))
        if not arrays or message.body is None:
            raise DataLossError("a piece of an array came before its first")
        arrays[-1].add(size, at, message.body)
    return None


def _place(header: bytes) -> tuple[int, int]:
    try:
        size, at = _PLACE.unpack(header[len(_MARK) :])
    except struct.error as error:
        raise DataLossError(f"not the header of a piece: {header[:80]!r}") from error
    if size > MAX_BODY_BYTES:
        raise DataLossError(
            f"an array of {size} bytes was announced, at most {MAX_BODY_BYTES} can be"
        )
    return size, at


def _whole(message: Message, arrays: list[_Array]) -> Arrived:
    if not arrays:
        return Arrived(message.header, message.body)
    return Arrived(message.header, SplitBody([each.whole() for each in arrays], message.body))


class _Array:
    """Pieces of one array, put together; one that came whole stays where it is."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrived = 0
        self._buffer: pa.Buffer | None = None

    def add(self, size: int, at: int, piece: pa.Buffer) -> None:
        end = at + piece.size
        if size != self._size or at != self._arrived or end > size:
            raise DataLossError(
                f"bytes {at} to {end} of {size} came of an array of {self._size}, of which "
                f"{self._arrived} were there"
            )
        self._arrived = end
        if piece.size == size:
            self._buffer = piece
            return
        if self._buffer is None:
            self._buffer = reused_buffer(size)
        bytes_of(self._buffer)[at:end] = bytes_of(piece)

    def whole(self) -> pa.Buffer:
        if self._buffer is None or self._arrived != self._size:
            raise DataLossError(f"{self._arrived} of {self._size} bytes of an array came")
        return self._buffer
