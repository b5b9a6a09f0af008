"""What a stream of the data service has handed out, and where in it a position is.

Responsible for positions between rows and for the account of consumed rows. Elements are linked
forwards only, so those that no position refers to are garbage-collected. Knows no threads and no
network. Invariant: the account of consumed rows never goes backwards and returns each row once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from dataservice.client.positions import ReaderPosition
from dataservice.dataset.positions import LivePosition
from dataservice.dataset.receipts import HeldPosition, HeldSource
from dataservice.dataset.stream import State
from dataservice.errors import FailedPreconditionError
from dataservice.wire.elements import RowSpan


class Step:
    """An element that was taken, with a link to the next one only."""

    __slots__ = ("next", "number", "rows", "spans")

    def __init__(self, number: int = 0, rows: int = 0, spans: tuple[RowSpan, ...] = ()) -> None:
        self.number = number
        self.rows = rows
        self.spans = spans
        self.next: Step | None = None

    @property
    def is_divisible(self) -> bool:
        """True if its rows are the rows of its spans, one by one, so that it can be cut."""
        return sum(span.rows for span in self.spans) == self.rows


class SteppedSource(HeldSource):
    """What a `StreamPosition` needs of the stream that handed out its steps."""

    has_fixed_order: bool

    @abstractmethod
    def reader_position(self, later: Iterator[tuple[RowSpan, ...]]) -> ReaderPosition:
        """Returns the saved form of the position after which the elements `later` were taken."""

    @abstractmethod
    def acknowledge(self, position: StreamPosition) -> None:
        """Marks everything that was handed out before the position as consumed."""

    @abstractmethod
    def marks(self, position: StreamPosition) -> dict[str, Any] | None:
        """Returns marks of the rows before the position that the dispatcher may not know of yet."""


class StreamPosition(LivePosition, HeldPosition):
    """The position after the element `step` and `rows` rows of the elements that follow it."""

    def __init__(self, stream: SteppedSource, step: Step, rows: int = 0) -> None:
        self._stream = stream
        self.step = step
        self.rows = rows

    def after(self, rows: int) -> StreamPosition:
        return StreamPosition(self._stream, self.step, self.rows + rows)

    @property
    def has_fixed_order(self) -> bool:
        return self._stream.has_fixed_order

    @property
    def source(self) -> SteppedSource:
        return self._stream

    def to_json(self) -> State:
        return self._stream.reader_position(self.later()).to_json()

    def acknowledge(self) -> None:
        self._stream.acknowledge(self)

    def marks(self) -> dict[str, Any] | None:
        return self._stream.marks(self)

    def later(self) -> Iterator[tuple[RowSpan, ...]]:
        """Yields the spans of the rows that were taken after the position."""
        step, rows = self.step.next, self.rows
        while step is not None:
            if rows >= step.rows:
                rows -= step.rows
            elif not rows:
                yield step.spans
            else:
                yield _without(step, rows)
                rows = 0
            step = step.next

    def normal(self) -> tuple[Step, int]:
        """Returns the last whole element before the position, and the row within the next one."""
        step, rows = self.step, self.rows
        while step.next is not None and rows >= step.next.rows:
            step = step.next
            rows -= step.rows
        return step, rows


class ConsumedMark:
    """The mark up to which the rows of a stream are consumed. Not thread-safe."""

    def __init__(self, start: Step) -> None:
        self._step = start
        self._rows = 0

    def is_at(self, step: Step) -> bool:
        """True if `step` is the last element that is consumed as a whole."""
        return self._step is step

    def spans_until(self, position: StreamPosition) -> list[RowSpan]:
        """Returns the spans from the mark to a position; none if the mark has passed it already."""
        step, rows = position.normal()
        if (step.number, rows) <= (self._step.number, self._rows):
            return []
        spans: list[RowSpan] = []
        at, first = self._step, self._rows
        while at is not step and at.next is not None:
            at = at.next
            spans += _part(at, first, at.rows)
            first = 0
        if at.next is not None:
            spans += _part(at.next, first, rows)
        return spans

    def advance(self, position: StreamPosition) -> list[RowSpan]:
        """Moves the mark to a position, never backwards; returns what `spans_until` would."""
        spans = self.spans_until(position)
        self._step, self._rows = max(
            position.normal(), (self._step, self._rows), key=lambda at: (at[0].number, at[1])
        )
        return spans


def _part(step: Step, first: int, end: int) -> tuple[RowSpan, ...]:
    """Returns the spans of rows [first, end) of an element.

    An element that cannot be cut has all of its spans at its last row.
    """
    if not first and end == step.rows:
        return step.spans
    if not step.is_divisible:
        return step.spans if end == step.rows else ()
    parts = []
    at = 0
    for span in step.spans:
        a, b = max(first - at, 0), min(end - at, span.rows)
        if a < b or (end == step.rows and not span.rows and at >= first):
            whole = b == span.rows
            parts.append(
                span._replace(
                    first_row=span.first_row + a,
                    end_row=span.first_row + b,
                    final=span.final and whole,
                )
            )
        at += span.rows
    return tuple(parts)


def _without(step: Step, rows: int) -> tuple[RowSpan, ...]:
    """Returns the spans of an element without its first `rows` rows.

    Raises FailedPreconditionError for an element that cannot be cut.
    """
    if not step.is_divisible:
        raise FailedPreconditionError(
            "the position is inside a batch that operators after batch() made on the data workers; "
            "cut batches before distribute(), or save the state where a batch begins"
        )
    rest = []
    for span in step.spans:
        skipped = min(rows, span.rows)
        rows -= skipped
        rest.append(span._replace(first_row=span.first_row + skipped))
    return tuple(rest)
