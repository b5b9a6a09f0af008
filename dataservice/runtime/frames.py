"""Record batches as bodies of messages: Arrow IPC without the schema.

The schema travels once, when a stream opens, with a CRC. Arrow IPC has no checksum and most damage
to a batch decodes into other data, so a receiver compares a `checksum` of the body first.

Knows no streams, no files and not the meaning of columns. Invariant: a batch returned by
`decode_batch` is safe to read, whatever bytes arrived.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal

import pyarrow as pa

from dataservice.errors import DataLossError, InvalidArgumentError
from dataservice.runtime.checksum import aligned

Compression = Literal["lz4", "zstd"]

_ONE_THREAD = pa.ipc.IpcWriteOptions(use_threads=False)
_CRC = struct.Struct("<I")
_DECODE_ERRORS = (pa.ArrowException, OSError, EOFError, OverflowError)


def encode_schema(schema: pa.Schema) -> bytes:
    """Encodes `schema`, followed by its CRC.

    Raises InvalidArgumentError for dictionary types, whose values are not part of a batch.
    """
    for field in schema:
        if _has_dictionary(field.type):
            raise InvalidArgumentError(
                f"column {field.name!r} has type {field.type}, which cannot be sent by batch; "
                f"cast it to its value type"
            )
    encoded: bytes = schema.serialize().to_pybytes()
    return encoded + _CRC.pack(zlib.crc32(encoded))


def decode_schema(encoded: bytes) -> pa.Schema:
    """Decodes what `encode_schema` encoded; raises DataLossError if the bytes are damaged."""
    message, crc = encoded[: -_CRC.size], encoded[-_CRC.size :]
    if crc != _CRC.pack(zlib.crc32(message)):
        raise DataLossError(f"a schema of {len(encoded)} bytes does not match its CRC")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
    except _DECODE_ERRORS as error:
        raise DataLossError(f"the bytes of a schema are damaged: {error}") from error
    return schema


def encode_batch(batch: pa.RecordBatch, *, compression: Compression | None = None) -> pa.Buffer:
    """Encodes `batch` without its schema. Of a slice, only its own rows are written."""
    if compression is None:
        return batch.serialize()
    # Only a stream writer accepts options; it writes the same message for a batch.
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    writer = pa.ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch)
    batch_end = sink.tell()
    writer.close()
    return sink.getvalue()[batch.schema.serialize().size : batch_end]


class BatchBody:
    """A batch that encodes itself, without its schema, into memory given by the caller."""

    def __init__(self, batch: pa.RecordBatch, schema_bytes: int, size_bytes: int) -> None:
        self.batch = batch
        self.size = size_bytes
        self.room = schema_bytes + size_bytes

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        """Writes the batch; returns its first byte and its size in bytes."""
        sink = pa.FixedSizeBufferWriter(target)
        # Arrow writes a batch only behind its schema; the bytes for the peer begin after that.
        writer = pa.ipc.new_stream(sink, self.batch.schema, options=_ONE_THREAD)
        writer.write_batch(self.batch)
        return sink.tell() - self.size, self.size


class BatchEncoder:
    """A factory of bodies for the batches of one stream; caches the size of their schema."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._schema_bytes = 0

    def body_of(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> BatchBody:
        """Returns the body of `batch`; `size_bytes`, if known, is the size of the encoded batch."""
        schema = batch.schema
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            self._schema, self._schema_bytes = schema, schema.serialize().size
        if size_bytes is None:
            size_bytes = pa.ipc.get_record_batch_size(batch)
        return BatchBody(batch, self._schema_bytes, size_bytes)


def decode_batch(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Decodes the batch in `body`. Its columns are views of the body, which they keep alive.

    A body that is not aligned to 8 bytes is copied first, so that kernels see aligned columns.
    Offsets, lengths and text are checked fully, as they come from a peer. Raises DataLossError if
    the bytes are no batch of `schema`.
    """
    try:
        batch = pa.ipc.read_record_batch(aligned(body), schema)
        batch.validate(full=True)
    except _DECODE_ERRORS as error:
        raise DataLossError(f"a batch of {body.size} bytes is damaged: {error}") from error
    return batch


def _has_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    return any(
        _has_dictionary(data_type.field(index).type) for index in range(data_type.num_fields)
    )
