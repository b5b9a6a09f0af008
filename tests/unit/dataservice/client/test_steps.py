"""The mark of consumed elements: exact to a row, and it only moves forwards."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.cutting import TakenElement
from dataservice.client.read_spec import ReadSpec
from dataservice.client.service_stream import ServiceStream
from dataservice.client.steps import ConsumedMark, Step, StreamPosition
from dataservice.dataset.receipts import ReceiptSources
from dataservice.dataset.stream import RunContext
from dataservice.runtime.process.interrupts import HeldInterrupts
from dataservice.vocabulary import ShardingPolicy
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


def test_mark_advances_to_row_inside_element() -> None:
    steps = chain([span(0, 0, 10)], [span(0, 10, 14, True), span(1, 0, 6)])
    mark = ConsumedMark(steps[0])
    assert mark.advance(StreamPosition(STREAM, steps[0], 12)) == [
        span(0, 0, 10),
        span(0, 10, 12),
    ]
    assert mark.advance(StreamPosition(STREAM, steps[1], 1)) == []
    assert mark.advance(StreamPosition(STREAM, steps[1], 5)) == [
        span(0, 12, 14, True),
        span(1, 0, 1),
    ]
    assert not mark.is_at(steps[2])
    assert mark.advance(StreamPosition(STREAM, steps[2])) == [span(1, 1, 6)]
    assert mark.is_at(steps[2])


def test_indivisible_element_counts_only_when_complete() -> None:
    steps = chain([span(0, 0, 10)])
    steps[1].rows = 4
    mark = ConsumedMark(steps[0])
    assert mark.advance(StreamPosition(STREAM, steps[0], 3)) == []
    assert mark.advance(StreamPosition(STREAM, steps[1])) == [span(0, 0, 10)]


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_mark_passes_every_row_once_in_order(sizes: list[list[int]], stops: list[int]) -> None:
    at = 0
    elements = []
    for parts in sizes:
        spans = []
        for rows in parts:
            spans.append(span(0, at, at + rows))
            at += rows
        elements.append(spans)
    steps = chain(*elements)
    mark = ConsumedMark(steps[0])
    passed = 0
    for stop in [*stops, at]:
        position = StreamPosition(STREAM, steps[0], min(stop, at))
        for found in mark.advance(position):
            assert found.first_row == passed
            passed = found.end_row
        assert passed == max(passed, min(stop, at))
    assert passed == at


class EndlessReader:
    """A reader that hands out one row after the other, without end."""

    notice = ""

    def __init__(self) -> None:
        self.taken = self.acknowledged = 0
        self.batch = pa.RecordBatch.from_pydict({"x": [1]})

    def take(self, _interrupts: HeldInterrupts) -> TakenElement:
        self.taken += 1
        return TakenElement(self.batch, (span(0, self.taken - 1, self.taken),), 8)

    def acknowledge(self, spans: Any) -> None:
        self.acknowledged += sum(part.rows for part in spans)


def steps_of(stream: ServiceStream, of: EndlessReader) -> int:
    """Takes 100 elements of a stream; returns how many steps are left in memory."""
    gc.collect()
    before = sum(type(known) is Step for known in gc.get_objects())
    for _ in range(100):
        next(stream)
        if stream._receipt_sources is not None:
            stream._receipt_sources.receipt(stream.state()).acknowledge()
    assert of.acknowledged == of.taken == 100
    gc.collect()
    return sum(type(known) is Step for known in gc.get_objects()) - before


@pytest.mark.parametrize("receipt_sources", [None, ReceiptSources("owner")])
def test_consumed_elements_keep_no_steps_in_memory(
    receipt_sources: ReceiptSources | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ReadSpec(target="here:1", dataset_id="d", policy=ShardingPolicy.DYNAMIC)
    stream = ServiceStream(spec, RunContext(receipt_sources=receipt_sources))
    reader = EndlessReader()
    monkeypatch.setattr(stream, "join", lambda: reader)
    monkeypatch.setattr(stream, "_reader", reader)
    assert steps_of(stream, reader) <= 1
