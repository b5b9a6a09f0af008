"""Batches and schemas on the wire: decoding inverts encoding, and damage is refused or harmless."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.errors import DataLossError, InvalidArgumentError
from dataservice.runtime.frames import (
    BatchEncoder,
    decode_batch,
    decode_schema,
    encode_batch,
    encode_schema,
)


def _batch(rows: int = 7) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": pa.array([i / 3 if i % 3 else None for i in range(rows)], pa.float32()),
            "name": pa.array([f"näme{i}" for i in range(rows)], pa.string()),
            "tags": pa.array([[i] * (i % 3) for i in range(rows)], pa.list_(pa.int32())),
            "pair": pa.array([[i, -i] for i in range(rows)], pa.list_(pa.int16(), 2)),
            "flag": pa.array([i % 2 == 0 for i in range(rows)], pa.bool_()),
        }
    )


BATCH = _batch()
BODY = encode_batch(BATCH)
SCHEMA_BYTES = encode_schema(BATCH.schema)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_encoded_batch_decodes_to_same_batch(rows: int, compression: str | None) -> None:
    batch = _batch(rows)
    body = encode_batch(batch, compression=compression)  # type: ignore[arg-type]
    assert decode_batch(body, batch.schema).equals(batch)


def test_compression_shrinks_repetitive_batches() -> None:
    batch = pa.record_batch({"x": np.zeros(10_000)})
    assert encode_batch(batch, compression="zstd").size < encode_batch(batch).size / 10


def test_encoded_slice_holds_only_its_rows() -> None:
    batch = _batch(1000)
    part = batch.slice(990, 5)
    body = encode_batch(part)
    assert body.size < encode_batch(batch).size / 20
    assert decode_batch(body, batch.schema).equals(part)


@pytest.mark.parametrize("shift", [0, 1, 3, 8, 13])
def test_columns_decoded_from_unaligned_body_are_aligned(shift: int) -> None:
    body = pa.py_buffer(b"\x00" * shift + BODY.to_pybytes())[shift:]
    decoded = decode_batch(body, BATCH.schema)
    assert decoded.equals(BATCH)
    assert decoded.column("id").to_numpy().flags.aligned


def test_aligned_body_is_decoded_without_copy() -> None:
    decoded = decode_batch(BODY, BATCH.schema)
    values = decoded.column("id").buffers()[1]
    assert BODY.address <= values.address < BODY.address + BODY.size


def test_schema_round_trip_keeps_metadata() -> None:
    schema = BATCH.schema.with_metadata({"k": "v"})
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    "data_type",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]),
    ],
)
def test_schema_with_dictionary_column_is_refused_naming_it(data_type: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'color'.*cast"):
        encode_schema(pa.schema([("color", data_type)]))


def _decodes_or_reports_loss(damaged: bytes) -> None:
    try:
        decoded = decode_batch(pa.py_buffer(damaged), BATCH.schema)
    except DataLossError:
        return
    # Whatever was decoded can be read in full.
    assert decoded.schema.equals(BATCH.schema)
    decoded.to_pydict()


@given(st.lists(st.integers(0, BODY.size * 8 - 1), min_size=1, max_size=4))
def test_flipped_bits_in_body_never_crash(bits: list[int]) -> None:
    damaged = bytearray(BODY.to_pybytes())
    for bit in bits:
        damaged[bit // 8] ^= 1 << (bit % 8)
    _decodes_or_reports_loss(bytes(damaged))


@given(st.integers(0, BODY.size - 1))
def test_truncated_body_never_crashes(size: int) -> None:
    _decodes_or_reports_loss(BODY.to_pybytes()[:size])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decoded_as_schema_are_data_loss(noise: bytes) -> None:
    with pytest.raises(DataLossError, match="schema"):
        decode_schema(noise)


@given(st.integers(0, len(SCHEMA_BYTES) * 8 - 1))
def test_flipped_bit_in_schema_is_data_loss(bit: int) -> None:
    damaged = bytearray(SCHEMA_BYTES)
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(DataLossError, match="schema"):
        decode_schema(bytes(damaged))


def test_batch_body_decoded_as_schema_is_data_loss() -> None:
    body = BODY.to_pybytes()
    with pytest.raises(DataLossError, match="schema"):
        decode_schema(body + zlib.crc32(body).to_bytes(4, "little"))


def test_damaged_string_offsets_are_data_loss() -> None:
    batch = pa.record_batch({"name": ["aa", "bb", "cc"]})
    body = encode_batch(batch)
    offsets = np.array([0, 2, 4, 6], np.int32).tobytes()
    damaged = body.to_pybytes().replace(offsets, np.array([0, 2, 1 << 30, 6], np.int32).tobytes())
    assert damaged != body.to_pybytes()
    with pytest.raises(DataLossError):
        decode_batch(pa.py_buffer(damaged), batch.schema)


def test_body_decoded_with_other_schema_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        decode_batch(BODY, pa.schema([(f"c{i}", pa.string()) for i in range(9)]))


@given(st.integers(0, 300), st.integers(0, 40))
def test_in_place_encoding_equals_encode_batch(rows: int, first: int) -> None:
    texts = [None if index % 7 == 0 else "x" * index for index in range(rows)]
    table = {"n": pa.array(range(rows), pa.int64()), "t": pa.array(texts, pa.string())}
    batch = pa.RecordBatch.from_pydict(table).slice(first)
    encoder = BatchEncoder()
    for _ in range(2):
        body = encoder.body_of(batch)
        target = pa.py_buffer(bytearray(body.room))
        start, size = body.write_into(target)
        written = target.slice(start, size)
        assert written.equals(encode_batch(batch))
        assert decode_batch(written, batch.schema).equals(batch)
