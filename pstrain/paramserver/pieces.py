"""Long messages over a network: the large arrays follow the message, each whole or in pieces.

Arrays that exist already are sent without a copy; while pieces of a long array are on the wire, its
next rows are looked up. Knows bodies, nothing of their contents nor of who sends them. Invariant:
the receiver gets a message only when all of it has arrived; a stream that breaks in the middle of a
message delivers nothing of it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from dataservice.runtime.exchanges.message import MAX_BODY_BYTES, Message
from pstrain.errors import DataLossError
from pstrain.paramserver.messages import (
    Body,
    LateBody,
    Received,
    SplitBody,
    is_large,
    part_bytes,
    reused_buffer,
)

# Shorter arrays are sent whole, so that the receiver copies nothing. That saves more than looking
# rows up while others are on the wire.
PIECE_BYTES: Final = 4 << 20

_HEAD: Final = b"\0head"
_COUNTS: Final = struct.Struct("<I?")
_SIZE: Final = struct.Struct("<Q")
_PIECE: Final = b"\0piece"
_PLACE: Final = struct.Struct("<IQ")

Send = Callable[[bytes, pa.Buffer | None], None]


class Arrived(NamedTuple):
    """A message that arrived over a network or through shared memory."""

    header: bytes
    body: Received


def send(send_one: Send, header: bytes, body: Body) -> None:
    """Sends a message as one, or, if it has large arrays, sends these separately after the rest.

    The first piece of the first large array travels with the header if there are no other arrays.
    """
    if not isinstance(body, LateBody):
        send_one(header, body)
        return
    large = [part for part, each in enumerate(body.parts) if is_large(each)]
    rest = body.without(large) if large else body
    if large:
        sizes = [part_bytes(body.parts[part]) for part in large]
        header = _head(sizes, rest is not None) + header
    if rest is not None:
        send_one(header, rest.to_buffer())
    for index, part in enumerate(large):
        for at, piece in _pieces(body, part):
            is_first = rest is None and index == at == 0
            send_one(header if is_first else _PIECE + _PLACE.pack(index, at), piece)


def _head(sizes: list[int], has_rest: bool) -> bytes:
    return b"".join((_HEAD, _COUNTS.pack(len(sizes), has_rest), *map(_SIZE.pack, sizes)))


def _pieces(body: LateBody, part: int) -> Iterator[tuple[int, pa.Buffer]]:
    """Yields (first byte, piece); an array that exists already is one piece, so not copied."""
    size, rows = part_bytes(body.parts[part]), body.parts[part][1][0]
    pieces = 1 if body.arrays[part] is not None else -(-size // PIECE_BYTES)
    at = 0
    for start, stop in _even(rows, pieces):
        piece = body.rows(part, start, stop)
        yield at, piece
        at += piece.size


def _even(rows: int, pieces: int) -> list[tuple[int, int]]:
    edges = [rows * piece // pieces for piece in range(pieces + 1)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def receive(receive_one: Callable[[], Message | None]) -> Arrived | None:
    """Returns the next whole message, or None if the stream ends before one is complete."""
    first = receive_one()
    if first is None:
        return None
    if not first.header.startswith(_HEAD):
        return Arrived(first.header, first.body)
    sizes, has_rest, header = _read_head(first.header)
    arrays = [_Array(size) for size in sizes]
    if not has_rest:
        arrays[0].add(0, first.body)
    for index, array in enumerate(arrays):
        while not array.is_whole:
            message = receive_one()
            if message is None:
                return None
            array.add(_place(message.header, index), message.body)
    rest = first.body if has_rest else None
    return Arrived(header, SplitBody([array.whole() for array in arrays], rest))


def _read_head(data: bytes) -> tuple[list[int], bool, bytes]:
    """Returns the sizes of the large arrays, whether small arrays came with it, and the header."""
    at = len(_HEAD)
    try:
        count, has_rest = _COUNTS.unpack_from(data, at)
        at += _COUNTS.size
        end = at + count * _SIZE.size
        sizes = [size for (size,) in _SIZE.iter_unpack(data[at:end])]
    except struct.error as error:
        raise DataLossError(f"not the header of a long message: {data[:80]!r}") from error
    if len(sizes) != count or not sizes or 0 in sizes or max(sizes) > MAX_BODY_BYTES:
        raise DataLossError(
            f"{count} arrays of {sizes[:10]} bytes were announced, each can be of 1 to "
            f"{MAX_BODY_BYTES}"
        )
    return sizes, has_rest, data[end:]


def _place(header: bytes, index: int) -> int:
    """Returns the byte of array ``index`` at which a piece begins."""
    try:
        found, at = _PLACE.unpack(header.removeprefix(_PIECE))
    except struct.error as error:
        raise DataLossError(f"not the header of a piece: {header[:80]!r}") from error
    if found != index:
        raise DataLossError(f"a piece of array {found} came in the middle of array {index}")
    return int(at)


class _Array:
    """Assembles the pieces of one array; an array that arrives whole is not copied."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrived = 0
        self._buffer: pa.Buffer | None = None

    @property
    def is_whole(self) -> bool:
        return self._arrived == self._size

    def add(self, at: int, piece: pa.Buffer | None) -> None:
        end = at + (0 if piece is None else piece.size)
        if piece is None or at != self._arrived or not at < end <= self._size:
            raise DataLossError(
                f"bytes {at} to {end} came of an array of {self._size}, of which {self._arrived} "
                "were there"
            )
        self._arrived = end
        if piece.size == self._size:
            self._buffer = piece
            return
        if self._buffer is None:
            self._buffer = reused_buffer(self._size)
        memoryview(self._buffer)[at:end] = memoryview(piece)

    def whole(self) -> pa.Buffer:
        assert self._buffer is not None
        return self._buffer
