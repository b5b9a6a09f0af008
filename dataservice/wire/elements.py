"""Headers of the frames that carry elements from a worker to a reader.

A frame is a header, packed here, and a body, one encoded record batch. The header says where the
rows come from, so that a reader can tell what it has, what is new and what is missing. Knows
nothing of Arrow, of transport or of windows' contents. Both sides pack little-endian. Invariant: a
header that does not parse is reported as damage, never replaced by a default.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from dataservice.errors import DataLossError

EXCHANGE = "elements"
NO_WINDOW = -1

_VERSION = 2
# version, kind, flags, spans, rows, rows of an element, checksum of the body
_HEAD = struct.Struct("<BBBxHIIQ")
_SPAN = struct.Struct("<qqqqB")
_DIVISIBLE = 1
_MORE_FOLLOWS = 2
_MAX_ROWS = (1 << 32) - 1


class FrameKind(IntEnum):
    """The kinds of frames.

    A worker sends DATA (rows), KEEPALIVE (a sign of life), END (of the stream), MISSED (how many
    elements the reader will not get), OMITTED (notes of what is left out of the frames that follow)
    and BOOKMARK (from where the task whose rows follow can be continued). A reader sends CREDIT
    (how much more it can take) and ASK (the rounds that it wants).
    """

    DATA = 1
    KEEPALIVE = 2
    END = 3
    CREDIT = 4
    MISSED = 5
    OMITTED = 6
    ASK = 7
    BOOKMARK = 8


_WITH_NOTES = (FrameKind.OMITTED, FrameKind.BOOKMARK)


class RowSpan(NamedTuple):
    """Output rows [first_row, end_row) of one window under one lease generation.

    `final`: the window has no rows after these. A span may be empty.
    """

    window: int
    generation: int
    first_row: int
    end_row: int
    final: bool = False

    @property
    def rows(self) -> int:
        return self.end_row - self.first_row


class Header(NamedTuple):
    """A parsed header; `rows` and `checksum` are the body's, 0 without a body.

    A body may hold several elements, one after the other: each but the last has `element_rows`
    rows; 0 means that the body is one element. In a CREDIT, `rows` is the number of further
    elements or MISSED frames that the worker may send; in a MISSED, it is the number of elements
    that were dropped.

    `divisible`: the body's rows are the spans' rows one by one, so that a part of them may be kept;
    a batch that operators were applied to as a whole is not divisible. `more_follows`: the worker
    is at work on more for this reader, so that another frame is certain to come unless the stream
    ends or breaks. `notes`: the notes of an OMITTED, or the encoded bookmark of a BOOKMARK.
    """

    kind: FrameKind
    rows: int = 0
    checksum: int = 0
    spans: tuple[RowSpan, ...] = ()
    divisible: bool = False
    notes: bytes = b""
    element_rows: int = 0
    more_follows: bool = False

    @property
    def elements(self) -> int:
        """The number of elements in the body."""
        return elements_in(self.rows, self.element_rows)


def elements_in(rows: int, element_rows: int) -> int:
    """Returns the number of elements that `rows` are cut into; one if `element_rows` is 0."""
    return -(-rows // element_rows) if element_rows else 1


def _head(kind: FrameKind, spans: int = 0, rows: int = 0, checksum: int = 0) -> bytes:
    return _HEAD.pack(_VERSION, kind, 0, spans, rows, 0, checksum)


KEEPALIVE = _head(FrameKind.KEEPALIVE)
END = _head(FrameKind.END)


def pack_data(
    rows: int,
    checksum: int,
    spans: Sequence[RowSpan],
    *,
    divisible: bool,
    element_rows: int = 0,
    more_follows: bool = False,
) -> bytes:
    """Returns the header of a data frame, of at most 65,535 spans."""
    flags = (_DIVISIBLE if divisible else 0) | (_MORE_FOLLOWS if more_follows else 0)
    head = _HEAD.pack(_VERSION, FrameKind.DATA, flags, len(spans), rows, element_rows, checksum)
    return head + b"".join(_SPAN.pack(*span) for span in spans)


def pack_credit(elements: int) -> bytes:
    """Returns a header that lets a worker send `elements` more elements."""
    return _head(FrameKind.CREDIT, rows=elements)


def pack_missed(elements: int) -> bytes:
    """Returns a header that says how many elements were dropped before the reader got them."""
    return _head(FrameKind.MISSED, rows=min(elements, _MAX_ROWS))


def pack_omitted(notes: bytes) -> bytes:
    """Returns a header that tells a reader what is missing from the frames that follow."""
    return _head(FrameKind.OMITTED, checksum=zlib.crc32(notes)) + notes


def pack_bookmark(encoded: bytes) -> bytes:
    """Returns a header that tells a reader from where the task whose rows follow can continue."""
    return _head(FrameKind.BOOKMARK, checksum=zlib.crc32(encoded)) + encoded


def _unpack_notes(kind: FrameKind, header: bytes, crc: int) -> Header:
    notes = bytes(header[_HEAD.size :])
    if zlib.crc32(notes) != crc:
        raise ValueError(f"notes of {len(notes)} bytes do not match their checksum")
    return Header(kind, notes=notes)


class Ask(NamedTuple):
    """Rounds [first, end) of coordinated reads, as assigned to workers in this generation."""

    first: int
    end: int
    generation: int


def pack_asks(asks: Sequence[Ask], low: int) -> bytes:
    """Returns a header that asks for rounds; all consumers are done with those below `low`."""
    spans = [RowSpan(NO_WINDOW, 0, low, low)]
    spans += [RowSpan(0, ask.generation, ask.first, ask.end) for ask in asks]
    head = _head(FrameKind.ASK, spans=len(spans))
    return head + b"".join(_SPAN.pack(*span) for span in spans)


def asks_of(header: Header) -> tuple[int, list[Ask]]:
    """Returns what `pack_asks` was given: the low-water mark and the rounds that are asked for."""
    if header.kind is not FrameKind.ASK or not header.spans:
        raise DataLossError(f"a consumer sent a frame of kind {header.kind.name}")
    low, *wanted = header.spans
    return low.end_row, [Ask(span.first_row, span.end_row, span.generation) for span in wanted]


def unpack(header: bytes) -> Header:
    """Parses a header; DataLossError if it is damaged."""
    try:
        version, kind, flags, count, rows, element_rows, checksum = _HEAD.unpack_from(header)
        if kind in _WITH_NOTES and version == _VERSION:
            return _unpack_notes(FrameKind(kind), header, checksum)
        if version != _VERSION or len(header) != _HEAD.size + count * _SPAN.size:
            raise ValueError(f"version {version}, {len(header)} bytes, {count} spans")
        spans = tuple(
            RowSpan(window, generation, first, end, bool(final))
            for window, generation, first, end, final in _SPAN.iter_unpack(header[_HEAD.size :])
        )
        is_divisible = bool(flags & _DIVISIBLE)
        if element_rows and not is_divisible:
            raise ValueError("several elements in a body that is a unit")
        return Header(
            FrameKind(kind),
            rows,
            checksum,
            spans,
            is_divisible,
            element_rows=element_rows,
            more_follows=bool(flags & _MORE_FOLLOWS),
        )
    except (struct.error, ValueError) as error:
        raise DataLossError(f"damaged element header of {len(header)} bytes: {error}") from error
