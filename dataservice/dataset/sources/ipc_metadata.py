"""The numbers of rows in an Arrow IPC file, from its metadata alone.

Arrow's own reader decompresses or copies a column to find them, so this module parses the
flatbuffers itself. Their layout: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
Knows no schema and no values. Invariant: the bodies of record batches are never read.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

_TRAILER: Final = struct.Struct("<i6s")  # length of the footer, magic
_BLOCK: Final = struct.Struct("<qi4xq")  # offset, bytes of metadata, bytes of body
_CONTINUATION: Final = 0xFFFFFFFF
# Positions of fields in the tables Footer, Message and RecordBatch.
_FOOTER_BATCHES: Final = 3
_MESSAGE_HEADER: Final = 2
_BATCH_LENGTH: Final = 0
_BATCH_COMPRESSION: Final = 3


class BatchMetadata(NamedTuple):
    """The rows of a record batch, and whether its body is compressed."""

    rows: int
    compressed: bool


def batch_metadata(handle: Any, limit: int | None = None) -> list[BatchMetadata]:
    """Returns the metadata of the first `limit` record batches of an open file; None: of all.

    ValueError for malformed metadata.
    """
    size = int(handle.seek(0, 2))
    try:
        handle.seek(size - _TRAILER.size)
        length, _ = _TRAILER.unpack(handle.read(_TRAILER.size))
        if not 0 < length <= size:
            raise ValueError(f"the footer cannot have {length} bytes")
        handle.seek(size - _TRAILER.size - length)
        footer = bytes(handle.read(length))
        found = []
        for offset, metadata_bytes in _blocks(footer)[:limit]:
            handle.seek(offset)
            found.append(_batch(bytes(handle.read(metadata_bytes))))
        return found
    except (struct.error, OverflowError) as error:
        raise ValueError(f"malformed metadata: {error}") from error


def _blocks(footer: bytes) -> list[tuple[int, int]]:
    (root,) = struct.unpack_from("<I", footer)
    at = _field(footer, root, _FOOTER_BATCHES)
    if at is None:
        return []
    vector = at + int(struct.unpack_from("<I", footer, at)[0])
    (count,) = struct.unpack_from("<I", footer, vector)
    if count * _BLOCK.size > len(footer):
        raise ValueError(f"{count} blocks do not fit into the footer")
    starts = (vector + 4 + index * _BLOCK.size for index in range(count))
    return [_BLOCK.unpack_from(footer, start)[:2] for start in starts]


def _batch(message: bytes) -> BatchMetadata:
    (first,) = struct.unpack_from("<I", message)
    base = 8 if first == _CONTINUATION else 4
    body = message[base:]
    (root,) = struct.unpack_from("<I", body)
    at = _field(body, root, _MESSAGE_HEADER)
    if at is None:
        raise ValueError("a message without a header")
    batch = at + int(struct.unpack_from("<I", body, at)[0])
    length = _field(body, batch, _BATCH_LENGTH)
    rows = 0 if length is None else int(struct.unpack_from("<q", body, length)[0])
    if rows < 0:
        raise ValueError(f"a record batch of {rows} rows")
    return BatchMetadata(rows, _field(body, batch, _BATCH_COMPRESSION) is not None)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Returns the place of field `number` in the flatbuffer table at `table`; None if absent."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise ValueError("a table lies outside of its flatbuffer")
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > vtable_bytes:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + int(offset) if offset else None
