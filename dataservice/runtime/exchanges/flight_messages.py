"""How a message travels through Flight: as the metadata and the single value of a one-row batch.

Responsible for this layout; neither side copies a body. A batch without rows is a control message
of the exchange itself: the greeting that opens it, or the error that ends it. Knows no connection.
Invariant: `unpack` of what `write` wrote is the message.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.message import Message, check_message, check_sizes

SCHEMA = pa.schema([pa.field("body", pa.large_binary(), nullable=False)])
_EMPTY_BODY = pa.py_buffer(b"")
# Not made by `pa.array`, which imports pandas if that is installed, for a third of a second.
_NO_ROWS = pa.Array.from_buffers(pa.large_binary(), 0, [None, pa.py_buffer(bytes(8)), _EMPTY_BODY])
CONTROL = pa.RecordBatch.from_arrays([_NO_ROWS], schema=SCHEMA)
_ALIGNMENT = 16
# The size of all other protobuf fields before the body, modulo the alignment.
_FIELDS_BYTES = 14
_PADDINGS = [bytes([extra]) + bytes(extra) for extra in range(_ALIGNMENT)]
_OFFSETS = struct.Struct("<qq")


def _body_batch(buffer: pa.Buffer) -> pa.RecordBatch:
    check_sizes(0, buffer.size)
    offsets = pa.py_buffer(_OFFSETS.pack(0, buffer.size))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, buffer])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def write(writer: Any, header: bytes, body: Any) -> None:
    """Writes a message to a stream of `SCHEMA`."""
    if body is None:
        check_message(header, body)
        writer.write_metadata(header)
    else:
        buffer = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
        padding = _padding(len(header), buffer.size)
        writer.write_with_metadata(_body_batch(buffer), padding + header)


def _padding(header_bytes: int, body_bytes: int) -> bytes:
    """Returns the padding before a header that aligns the body to 16 bytes at the receiver.

    Arrow returns a received body in place, in gRPC's buffer, behind protobuf fields whose length
    depends on the header and the body alone. Reading a misaligned body costs a copy, which is a
    third of the time of a large message. The first byte of the padding counts the bytes that
    follow. If Arrow laid the fields out differently, messages would be slower but not wrong.
    """
    body_field = _varint_bytes(_OFFSETS.size + -(-body_bytes // 8) * 8)
    for extra in range(_ALIGNMENT):
        total = header_bytes + 1 + extra
        if (_FIELDS_BYTES + _varint_bytes(total) + total + body_field) % _ALIGNMENT == 0:
            return _PADDINGS[extra]
    return _PADDINGS[0]


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def unpack(chunk: Any) -> tuple[Message, bool]:
    """Returns the message in a chunk, and whether it is a control message."""
    metadata = chunk.app_metadata
    header = b"" if metadata is None else metadata.to_pybytes()
    batch = chunk.data
    if batch is None:
        return Message(header, None), False
    if batch.num_rows == 0:
        return Message(header, None), True
    buffers = batch.column(0).buffers()
    if len(buffers) != 3 or not header:
        raise DataLossError("a peer sent a batch that is not a message of this protocol")
    return Message(header[1 + header[0] :], buffers[2] or _EMPTY_BODY), False
