"""Elements across window borders: no row is lost, and each keeps its origin."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dataservice.wire.elements import RowSpan
from dataservice.worker.rebatch import Element, Rebatcher


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + count), pa.int64())})


def ids(element: Element) -> list[int]:
    return [] if element.batch is None else element.batch.column("id").to_pylist()


def test_rebatched_elements_have_given_size_and_span_windows() -> None:
    rebatcher = Rebatcher(4)
    first = list(rebatcher.add(rows(0, 6), 0, 2, 0))
    assert [ids(e) for e in first] == [[0, 1, 2, 3]]
    assert list(rebatcher.end_window(0, 2, 6)) == []
    second = list(rebatcher.add(rows(100, 3), 1, 0, 0))
    assert [ids(e) for e in second] == [[4, 5, 100, 101]]
    assert second[0].spans == (RowSpan(0, 2, 4, 6, True), RowSpan(1, 0, 0, 2, False))
    assert [ids(e) for e in rebatcher.flush()] == [[102]]


def test_window_end_without_rows_is_sent_with_next_rows() -> None:
    rebatcher = Rebatcher(2, run=2)
    assert list(rebatcher.end_window(3, 1, 0)) == []
    assert rebatcher.holds_only_ends
    (element,) = rebatcher.add(rows(0, 4), 4, 0, 0)
    assert element.spans == (RowSpan(3, 1, 0, 0, True), RowSpan(4, 0, 0, 4, False))
    assert (ids(element), element.element_rows) == ([0, 1, 2, 3], 2)
    assert not rebatcher.holds_anything


def test_window_ends_without_rows_are_emitted_on_flush_or_when_many() -> None:
    rebatcher = Rebatcher(4)
    list(rebatcher.end_window(3, 1, 0))
    assert list(rebatcher.flush()) == [Element(None, (RowSpan(3, 1, 0, 0, True),))]
    given = [list(rebatcher.end_window(window, 0, 0)) for window in range(64)]
    assert [len(elements) for elements in given] == [0] * 63 + [1]
    (many,) = given[-1]
    assert (many.batch, len(many.spans)) == (None, 64)


def test_rebatcher_holding_rows_does_not_hold_only_ends() -> None:
    rebatcher = Rebatcher(4)
    list(rebatcher.add(rows(0, 1), 0, 0, 0))
    list(rebatcher.end_window(0, 0, 1))
    assert rebatcher.holds_anything
    assert not rebatcher.holds_only_ends


def test_replay_starts_at_row_of_its_lease() -> None:
    rebatcher = Rebatcher(2)
    (element,) = rebatcher.add(rows(50, 2), 7, 1, 50)
    assert element.spans == (RowSpan(7, 1, 50, 52, False),)


def test_dropped_remainder_still_accounts_for_its_rows() -> None:
    rebatcher = Rebatcher(4, drop_remainder=True)
    list(rebatcher.add(rows(0, 3), 0, 0, 0))
    list(rebatcher.end_window(0, 0, 3))
    assert list(rebatcher.flush()) == [Element(None, (RowSpan(0, 0, 0, 3, True),))]
    assert not rebatcher.holds_anything


def test_elements_without_batch_size_are_cut_by_bytes() -> None:
    rebatcher = Rebatcher(None)
    big = rows(0, 400_000)
    elements = [*rebatcher.add(big, 0, 0, 0), *rebatcher.flush()]
    assert [i for e in elements for i in ids(e)] == list(range(400_000))
    assert max(e.batch.nbytes for e in elements) <= 1 << 20


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6),
    st.integers(1, 7),
    st.booleans(),
)
def test_spans_cover_all_rows_of_all_windows_once(
    windows: list[list[int]], size: int, flush_often: bool
) -> None:
    rebatcher = Rebatcher(size)
    elements: list[Element] = []
    for window, counts in enumerate(windows):
        at = 0
        for count in counts:
            elements += rebatcher.add(rows(1000 * window + at, count), window, 0, at)
            at += count
        elements += rebatcher.end_window(window, 0, at)
        if flush_often:
            elements += rebatcher.flush()
    elements += rebatcher.flush()
    told = [1000 * s.window + r for e in elements for s in e.spans for r in range(s[2], s[3])]
    expected = [1000 * w + r for w, counts in enumerate(windows) for r in range(sum(counts))]
    assert told == expected
    assert [i for e in elements for i in ids(e)] == expected
    finals = [(s.window, s.end_row) for e in elements for s in e.spans if s.final]
    assert finals == [(w, sum(counts)) for w, counts in enumerate(windows)]
    if not flush_often:
        assert all(len(ids(e)) == size for e in elements[:-1] if e.batch is not None)


def test_elements_of_one_batch_are_emitted_as_runs() -> None:
    rebatcher = Rebatcher(2, run=3)
    batch = pa.record_batch({"row": list(range(13))})
    elements = [*rebatcher.add(batch, 0, 0, 0), *rebatcher.end_window(0, 0, 13)]
    elements += rebatcher.flush()
    assert [(e.batch.num_rows, e.element_rows) for e in elements if e.batch is not None] == [
        (6, 2),
        (6, 2),
        (1, 0),
    ]
    assert [span for e in elements for span in e.spans] == [
        RowSpan(0, 0, 0, 6),
        RowSpan(0, 0, 6, 12),
        RowSpan(0, 0, 12, 13, True),
    ]


def test_partial_element_is_completed_before_run_begins() -> None:
    rebatcher = Rebatcher(4, run=2)
    list(rebatcher.add(pa.record_batch({"row": [0]}), 0, 0, 0))
    elements = list(rebatcher.add(pa.record_batch({"row": list(range(1, 12))}), 0, 0, 1))
    assert [(e.batch.num_rows, e.element_rows) for e in elements if e.batch] == [(4, 0), (8, 4)]


def test_run_of_elements_is_bounded_in_bytes() -> None:
    rebatcher = Rebatcher(2, run=4)
    batch = pa.record_batch({"row": list(range(8))})
    elements = list(rebatcher.add(batch, 0, 0, 0, 3 << 24))
    assert [e.element_rows for e in elements] == [0, 0, 0, 0]
