"""Benchmark rows: reproducible in any range, learnable, and equal in every file format."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from bench import data
from bench.columns import CARDINALITIES, CATEGORICAL, DENSE
from bench.peers import tfrecord


def test_splitmix64_gives_the_published_sequence():
    # The first outputs of the reference generator seeded with 1234567.
    states = 1234567 + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    outputs = data.splitmix64(states).tolist()
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_rows_do_not_depend_on_requested_range():
    whole = data.generate(data.CHUNK_ROWS + 50)
    part = data.generate(100, start=data.CHUNK_ROWS - 50)
    for name, column in part.items():
        np.testing.assert_array_equal(column, whole[name][data.CHUNK_ROWS - 50 :])


def test_seeds_give_different_rows():
    assert (data.generate(100, seed=1)["c2"] != data.generate(100, seed=2)["c2"]).any()


def test_generated_columns_have_schema_and_value_ranges():
    columns = data.generate(5_000, label_dtype="int64")
    assert list(columns) == ["label", *DENSE, *CATEGORICAL]
    assert set(np.unique(columns["label"])) == {0, 1}
    for name in DENSE:
        assert columns[name].dtype == np.float32
        assert columns[name].min() >= 0
    for name, cardinality in zip(CATEGORICAL, CARDINALITIES, strict=True):
        assert columns[name].min() >= 1 << 62
        assert len(np.unique(columns[name])) <= cardinality


def test_planted_model_predicts_clicks_with_expected_auc():
    labels, dense, ids = next(data.raw_matrices(0, 30_000))
    assert 0.75 < roc_auc_score(labels, data.planted_logit(dense, ids)) < 0.85


def test_training_arrays_are_the_transformed_rows():
    labels, dense, ids = data.training_arrays(300)
    columns = data.generate(300)
    np.testing.assert_array_equal(labels, columns["label"])
    np.testing.assert_array_equal(dense[:, 3], np.log1p(columns["i3"]))
    np.testing.assert_array_equal(ids[:, 7], data.hash_ids(columns["c7"]))
    assert 0 <= ids.min() <= ids.max() < data.HASH_BUCKETS


def test_file_ranges_cover_the_rows_once():
    for rows, files in ((1, 8), (20_000, 3), (600_000, 8), (65_536, 1)):
        ranges = data.file_ranges(rows, files)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == rows
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
        assert all(start % data.BLOCK_ROWS == 0 for start, _ in ranges)


def test_parquet_and_arrow_files_hold_the_generated_rows(tmp_path: Path):
    expected = data.generate(9_000)
    parquet = data.write_files(tmp_path, 9_000, "parquet", files=2)
    arrow = data.write_files(tmp_path, 9_000, "arrow", files=2)
    assert len(parquet) == len(arrow) == 2
    for table in (
        pa.concat_tables(pq.read_table(path) for path in parquet),
        pa.concat_tables(pa.ipc.open_file(str(path)).read_all() for path in arrow),
    ):
        for name, column in expected.items():
            np.testing.assert_array_equal(table[name].to_numpy(), column)


@pytest.mark.parametrize(("rows", "files"), [(0, 1), (10, 0)])
def test_row_or_file_count_of_zero_is_refused(tmp_path: Path, rows: int, files: int):
    with pytest.raises(ValueError, match="positive"):
        data.write_files(tmp_path, rows, "parquet", files=files)


def test_unknown_file_format_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="'csv'"):
        data.write_files(tmp_path, 10, "csv")


def test_crc32c_matches_published_check_values():
    # Check value of the CRC catalogue, and the zeros and ones of RFC 3720, B.4.
    for text, crc in (
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
    ):
        record = np.frombuffer(text, np.uint8)[None]
        assert tfrecord._crc32c_rows(record, tfrecord._TABLE)[0] == crc


def test_frame_lays_out_length_data_and_checksums():
    record = np.frombuffer(b"123456789", np.uint8)[None]
    framed = tfrecord.frame(np.repeat(record, 2, axis=0))
    assert framed[:25] == framed[25:]
    length, _, text, crc = struct.unpack("<QI9sI", framed[:25])
    assert (length, text) == (9, b"123456789")
    assert crc == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) % (1 << 32)


def _fields(message: bytes) -> list[tuple[int, bytes]]:
    """Length-delimited fields of a protobuf message, read without the code under test."""
    fields, at = [], 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)
        assert tag & 7 == 2
        fields.append((tag >> 3, message[at : at + size]))
        at += size
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


@pytest.mark.parametrize("label_dtype", ["float32", "int64"])
def test_encoded_examples_decode_to_the_rows(label_dtype: str):
    labels, dense, ids = next(data.raw_matrices(0, 20))
    rows = tfrecord.encode_examples(labels.astype(label_dtype), dense, ids)
    for number, row in enumerate(rows):
        ((_, features),) = _fields(row.tobytes())
        values: dict[str, float] = {}
        for _, entry in _fields(features):
            (_, name), (_, feature) = _fields(entry)
            ((kind, packed),) = _fields(feature)
            ((_, content),) = _fields(packed)
            is_float = kind == 2
            value = struct.unpack("<f", content)[0] if is_float else _varint(content, 0)[0]
            values[name.decode()] = value
        expected = [labels[number], *dense[number], *ids[number]]
        assert list(values.values()) == expected
        assert list(values) == ["label", *DENSE, *CATEGORICAL]


def test_encoding_examples_refuses_ids_below_2_to_the_56():
    with pytest.raises(ValueError, match="2\\^56"):
        tfrecord.encode_examples(
            np.zeros(1, np.float32), np.zeros((1, 13), np.float32), np.ones((1, 26), np.int64)
        )


def test_packed_blocks_hold_full_blocks_only():
    labels, dense, ids = next(data.raw_matrices(0, 25))
    blocks = tfrecord.pack_blocks(labels, dense, ids, 10)
    assert blocks.shape == (2, 10 * (26 * 8 + 13 * 4 + 4))
    second = blocks[1].tobytes()
    np.testing.assert_array_equal(np.frombuffer(second[:2080], "<i8").reshape(10, 26), ids[10:20])
    np.testing.assert_array_equal(np.frombuffer(second[-40:], "<f4"), labels[10:20])
