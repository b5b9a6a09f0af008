"""How many rows a source of files puts into a chunk."""

from __future__ import annotations

import pyarrow as pa

from dataservice.dataset.stream import CHUNK_ROWS, chunk_rows, sent_chunks


def _columns(count: int, kind: pa.DataType) -> pa.Schema:
    return pa.schema([(f"c{index}", kind) for index in range(count)])


def test_chunks_of_narrow_rows_are_long():
    assert chunk_rows(_columns(1, pa.int8())) == chunk_rows(_columns(40, pa.int64())) == 65_536


def test_chunks_of_wide_rows_are_bounded_in_bytes():
    for count in (100, 1_000, 100_000):
        rows = chunk_rows(_columns(count, pa.int64()))
        assert rows * count * 8 <= 24 << 20
        assert rows.bit_count() == 1


def test_chunks_of_rows_of_unknown_width_stay_short():
    for kind in (pa.string(), pa.list_(pa.int64())):
        assert chunk_rows(pa.schema([("a", pa.int64()), ("b", kind)])) == CHUNK_ROWS


def test_what_is_sent_comes_in_shorter_chunks_of_the_same_rows():
    table = pa.table({f"c{index}": pa.array(range(70_000)) for index in range(40)})
    closed = []

    def read():
        try:
            yield from table.to_batches()
            yield table.slice(0, 10).to_batches()[0]
        finally:
            closed.append(True)

    chunks = list(sent_chunks(read()))
    assert max(chunk.num_rows for chunk in chunks) * 40 * 8 <= 6 << 20
    assert pa.Table.from_batches(chunks).equals(pa.concat_tables([table, table.slice(0, 10)]))
    assert len(chunks) == -(-70_000 // 16_384) + 1
    assert closed == [True]


def test_chunks_that_are_given_up_end_their_source():
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    closed = []

    def read():
        try:
            while True:
                yield batch
        finally:
            closed.append(True)

    chunks = sent_chunks(read())
    assert next(chunks) is batch
    chunks.close()
    assert closed == [True]
