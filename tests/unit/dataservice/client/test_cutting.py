"""Frames of several elements are cut into the elements, spans and rows together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.cutting import cut, new_rows
from dataservice.client.tracker import Tracker
from dataservice.wire.elements import FrameKind, Header, RowSpan


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"row": list(range(first, first + count))})


def test_frame_of_one_element_is_not_cut() -> None:
    batch, spans = rows(5), (RowSpan(0, 0, 0, 5),)
    assert list(cut(batch, spans, 0)) == [(batch, spans)]
    assert list(cut(batch, spans, 5)) == [(batch, spans)]


def test_window_end_stays_with_last_rows_of_its_window() -> None:
    spans = (RowSpan(0, 0, 4, 8, True), RowSpan(1, 0, 0, 0, True))
    (first, head), (last, tail) = cut(rows(4), spans, 3)
    assert (first.num_rows, head) == (3, (RowSpan(0, 0, 4, 7),))
    assert (last.num_rows, tail) == (1, (RowSpan(0, 0, 7, 8, True), RowSpan(1, 0, 0, 0, True)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 7))
def test_cut_elements_together_equal_the_frame(lengths: list[int], element_rows: int) -> None:
    spans = [RowSpan(w, 0, 0, n, True) for w, n in enumerate(lengths)]
    total = sum(lengths)
    elements = list(cut(rows(total), spans, element_rows))
    assert [n for e, _ in elements for n in e["row"].to_pylist()] == list(range(total))
    for element, its_spans in elements:
        assert element.num_rows == sum(span.rows for span in its_spans)
    assert all(e.num_rows == element_rows for e, _ in elements[:-1])
    ranges: dict[int, int] = {}
    for _, its_spans in elements:
        for span in its_spans:
            assert span.first_row == ranges.get(span.window, 0)
            ranges[span.window] = span.end_row
    assert ranges == dict(enumerate(lengths))
    assert sum(s.final for _, its in elements for s in its) == len(lengths)


@pytest.mark.parametrize("known", [0, 2, 5, 8])
def test_rows_received_before_are_dropped_before_cutting(known: int) -> None:
    tracker = Tracker()
    if known:
        tracker.receive("a", (RowSpan(0, 0, 0, known),))
    span = RowSpan(0, 0, 0, 8, True)
    header = Header(FrameKind.DATA, 8, 0, (span,), True, element_rows=3)
    accepted = tracker.receive("a", (span,))
    fresh = new_rows(rows(8), header, accepted)
    assert fresh["row"].to_pylist() == list(range(known, 8))
    assert accepted.rows == 8 - known
    cuts = list(cut(fresh, accepted.spans, header.element_rows))
    assert [e.num_rows for e, _ in cuts][:1] == ([min(3, 8 - known)])
