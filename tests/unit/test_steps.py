"""The account of what is used up: exact to a row, forwards only."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.steps import Account, Step, StreamPosition
from dataservice.wire.elements import RowSpan

STREAM: Any = None


def chain(*elements: list[RowSpan]) -> list[Step]:
    steps = [Step()]
    for spans in elements:
        steps.append(Step(len(steps), sum(s.rows for s in spans), tuple(spans)))
        steps[-2].next = steps[-1]
    return steps


def span(window: int, first: int, end: int, final: bool = False) -> RowSpan:
    return RowSpan(window, 0, first, end, final)


def test_rows_of_a_position_inside_an_element() -> None:
    steps = chain([span(0, 0, 10)], [span(0, 10, 14, True), span(1, 0, 6)])
    account = Account(steps[0])
    assert account.advance(StreamPosition(STREAM, steps[0], 12)) == [
        span(0, 0, 10),
        span(0, 10, 12),
    ]
    assert account.advance(StreamPosition(STREAM, steps[1], 1)) == []
    assert account.advance(StreamPosition(STREAM, steps[1], 5)) == [
        span(0, 12, 14, True),
        span(1, 0, 1),
    ]
    assert not account.is_at(steps[2])
    assert account.advance(StreamPosition(STREAM, steps[2])) == [span(1, 1, 6)]
    assert account.is_at(steps[2])


def test_an_element_that_cannot_be_cut_counts_when_it_is_complete() -> None:
    steps = chain([span(0, 0, 10)])
    steps[1].rows = 4
    account = Account(steps[0])
    assert account.advance(StreamPosition(STREAM, steps[0], 3)) == []
    assert account.advance(StreamPosition(STREAM, steps[1])) == [span(0, 0, 10)]


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_every_row_passes_once_and_in_order(sizes: list[list[int]], stops: list[int]) -> None:
    at = 0
    elements = []
    for parts in sizes:
        spans = []
        for rows in parts:
            spans.append(span(0, at, at + rows))
            at += rows
        elements.append(spans)
    steps = chain(*elements)
    account = Account(steps[0])
    passed = 0
    for stop in [*stops, at]:
        position = StreamPosition(STREAM, steps[0], min(stop, at))
        for found in account.advance(position):
            assert found.first_row == passed
            passed = found.end_row
        assert passed == max(passed, min(stop, at))
    assert passed == at
