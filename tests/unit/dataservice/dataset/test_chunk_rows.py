"""The number of rows in a chunk of a file source, by the width of its rows."""

from __future__ import annotations

import pyarrow as pa

from dataservice.dataset.stream import CHUNK_ROWS, chunk_rows


def _columns(count: int, kind: pa.DataType) -> pa.Schema:
    return pa.schema([(f"c{index}", kind) for index in range(count)])


def test_chunks_of_narrow_rows_have_65536_rows():
    assert chunk_rows(_columns(1, pa.int8())) == chunk_rows(_columns(40, pa.int64())) == 65_536


def test_chunks_of_wide_rows_are_bounded_in_bytes():
    for count in (100, 1_000, 100_000):
        rows = chunk_rows(_columns(count, pa.int64()))
        assert rows * count * 8 <= 24 << 20
        assert rows.bit_count() == 1


def test_chunks_of_variable_width_rows_stay_short():
    for kind in (pa.string(), pa.list_(pa.int64())):
        assert chunk_rows(pa.schema([("a", pa.int64()), ("b", kind)])) == CHUNK_ROWS
