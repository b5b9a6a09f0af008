"""The sequence of windows: however they arrive, rows leave in one order and in the same chunks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import dataservice as ds
from dataservice.client.sequence import Chunk, Sequencer
from dataservice.dataset.division.linear import with_tail, without_tail
from dataservice.ranges import Consumed, Ranges
from dataservice.wire.elements import RowSpan


def rows_of(window: int, first: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"x": [100 * window + row for row in range(first, end)]})


def values(chunks: list[Chunk]) -> list[list[int]]:
    return [chunk.batch.column("x").to_pylist() for chunk in chunks]


def span(window: int, first: int, end: int, *, final: bool = False) -> RowSpan:
    return RowSpan(window, 0, first, end, final)


def test_windows_arriving_early_are_held_until_their_turn() -> None:
    sequencer = Sequencer(Consumed(), 100)
    assert sequencer.add([span(1, 0, 2, final=True)], rows_of(1, 0, 2)) == []
    assert sequencer.holds_anything
    assert values(sequencer.add([span(0, 0, 3, final=True)], rows_of(0, 0, 3))) == [
        [0, 1, 2],
        [100, 101],
    ]
    assert not sequencer.holds_anything


def test_chunks_end_at_multiples_of_chunk_rows_and_at_window_end() -> None:
    sequencer = Sequencer(Consumed(), 4)
    assert values(sequencer.add([span(0, 0, 3)], rows_of(0, 0, 3))) == []
    chunks = sequencer.add([span(0, 3, 10, final=True)], rows_of(0, 3, 10))
    assert values(chunks) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [chunk.span.final for chunk in chunks] == [False, False, True]
    leased_again = RowSpan(1, 3, 0, 2, True)
    assert [chunk.span for chunk in sequencer.add([leased_again], rows_of(1, 0, 2))] == [
        leased_again
    ]


def test_chunk_is_last_of_its_window_only_once_the_end_has_come() -> None:
    sequencer = Sequencer(Consumed(), 4)
    (chunk,) = sequencer.add([span(0, 0, 4)], rows_of(0, 0, 4))
    assert chunk.span == span(0, 0, 4)


def test_empty_window_and_late_window_end_do_not_block_sequence() -> None:
    sequencer = Sequencer(Consumed(), 4)
    assert sequencer.add([span(0, 0, 0, final=True)], None) == []
    assert values(sequencer.add([span(1, 0, 4)], rows_of(1, 0, 4))) == [[100, 101, 102, 103]]
    assert sequencer.add([span(2, 0, 1, final=True)], rows_of(2, 0, 1)) == []
    assert values(sequencer.add([span(1, 4, 4, final=True)], None)) == [[200]]
    assert sequencer.add([span(0, 0, 0, final=True)], None) == []
    assert not sequencer.holds_anything, "an end that is told twice opens nothing"


def test_sequence_skips_rows_consumed_before() -> None:
    sequencer = Sequencer(Consumed(Ranges([(0, 2), (3, 5)]), {2: 6}), 4)
    chunks = sequencer.add(
        [span(2, 6, 9, final=True), span(5, 0, 1, final=True)],
        pa.concat_batches([rows_of(2, 6, 9), rows_of(5, 0, 1)]),
    )
    assert values(chunks) == [[206, 207], [208], [500]]


def test_chunk_rows_depend_on_width_of_first_rows() -> None:
    sequencer = Sequencer(Consumed())
    assert sequencer.add([span(0, 0, 0)], rows_of(0, 0, 0)) == []
    sequencer.add([span(0, 0, 1_000)], rows_of(0, 0, 1_000))
    assert sequencer.chunk_rows == 65_536
    wide = pa.record_batch({"x": ["a" * 10_000] * 50})
    sequencer = Sequencer(Consumed())
    sequencer.add([span(0, 0, 50)], wide)
    assert sequencer.chunk_rows == 64


@given(st.data())
def test_windows_in_any_arrival_order_give_one_sequence(data: st.DataObject) -> None:
    """Windows arrive in parts: in order within a window, in any order between windows."""
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5), label="rows")
    starts = [data.draw(st.integers(0, size)) for size in sizes]
    base = Consumed()
    for window, start in enumerate(starts):
        base.record(window, start)
    sequencer = Sequencer(base, 4)
    parts = {
        window: _parts(data, window, starts[window], size) for window, size in enumerate(sizes)
    }
    got: list[Chunk] = []
    while parts:
        window = data.draw(st.sampled_from(sorted(parts)))
        part = next(parts[window], None)
        if part is None:
            del parts[window]
            continue
        got += sequencer.add([part], rows_of(window, part.first_row, part.end_row))
    expected = [
        list(range(100 * window + first, 100 * window + min(size, first // 4 * 4 + 4)))
        for window, size in enumerate(sizes)
        for first in _firsts(starts[window], size)
    ]
    assert values(got) == expected
    assert not sequencer.holds_anything


def _firsts(start: int, size: int) -> list[int]:
    return [start, *range(start // 4 * 4 + 4, size, 4)] if start < size else []


def _parts(data: st.DataObject, window: int, row: int, size: int) -> Iterator[RowSpan]:
    while row < size:
        end = data.draw(st.integers(row + 1, size))
        yield span(window, row, end, final=end == size and data.draw(st.booleans()))
        row = end
    yield span(window, size, size, final=True)


def test_without_tail_splits_plan_at_first_batch() -> None:
    rows = ds.Dataset.range(9).filter(ds.col("id") > 1)
    whole = rows.batch(2).map(lambda c: c).prefetch(2)
    head, tail = without_tail(whole.node)
    assert head is rows.node
    assert [operator.kind for operator in tail] == ["batch", "map", "prefetch"]
    assert ds.Dataset(with_tail(head, tail)).to_table() == whole.to_table()
    assert without_tail(rows.node) == (rows.node, [])


def test_without_tail_keeps_repeat_of_batches_in_tail() -> None:
    rows = ds.Dataset.range(9).repeat(2)
    whole = rows.batch(4).repeat(2).prefetch(2)
    head, tail = without_tail(whole.node)
    assert head is rows.node
    assert [operator.kind for operator in tail] == ["batch", "repeat", "prefetch"]
    assert list(ds.Dataset(with_tail(head, tail))) == list(whole)
