"""What a stream of the data service has handed out, and where in it a position is.

Elements are linked forwards only: those that no position can ask for are forgotten by themselves.
No threads, no network. Invariant: the account of what is used up never goes backwards, and each row
passes it once.
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
    """An element that was taken. Steps know only the next one."""

    __slots__ = ("next", "number", "rows", "spans")

    def __init__(self, number: int = 0, rows: int = 0, spans: tuple[RowSpan, ...] = ()) -> None:
        self.number = number
        self.rows = rows
        self.spans = spans
        self.next: Step | None = None

    @property
    def is_divisible(self) -> bool:
        """Whether its rows are those of its windows, one by one."""
        return sum(span.rows for span in self.spans) == self.rows


class SteppedSource(HeldSource):
    """A stream of steps, as its positions see it."""

    is_repeatable: bool

    @abstractmethod
    def settle(self, later: Iterator[tuple[RowSpan, ...]]) -> ReaderPosition:
        """The position before some elements that were taken."""

    @abstractmethod
    def acknowledge(self, position: StreamPosition) -> None:
        """What was handed out before the position is used up."""

    @abstractmethod
    def marks(self, position: StreamPosition) -> dict[str, Any] | None:
        """The rows before the position, as far as the dispatcher need not know of them yet."""


class StreamPosition(LivePosition, HeldPosition):
    """After an element, and so many rows of those after it."""

    def __init__(self, stream: SteppedSource, step: Step, rows: int = 0) -> None:
        self._stream = stream
        self.step = step
        self.rows = rows

    def after(self, rows: int) -> StreamPosition:
        return StreamPosition(self._stream, self.step, self.rows + rows)

    @property
    def is_repeatable(self) -> bool:
        return self._stream.is_repeatable

    @property
    def source(self) -> SteppedSource:
        return self._stream

    def settle(self) -> State:
        return self._stream.settle(self.later()).to_json()

    def acknowledge(self) -> None:
        self._stream.acknowledge(self)

    def marks(self) -> dict[str, Any] | None:
        return self._stream.marks(self)

    def later(self) -> Iterator[tuple[RowSpan, ...]]:
        """Where the rows come from that were taken after the position."""
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
        """The last whole element before it, and the rows of the one after that."""
        step, rows = self.step, self.rows
        while step.next is not None and rows >= step.next.rows:
            step = step.next
            rows -= step.rows
        return step, rows


class Account:
    """How far the rows of a stream are used up. Not thread-safe."""

    def __init__(self, start: Step) -> None:
        self._step = start
        self._rows = 0

    def is_at(self, step: Step) -> bool:
        """Whether everything up to the end of an element is used up."""
        return self._step is step

    def until(self, position: StreamPosition) -> list[RowSpan]:
        """The rows between here and a position; none for one that was passed."""
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
        """As `until`, and moves there."""
        spans = self.until(position)
        self._step, self._rows = max(
            position.normal(), (self._step, self._rows), key=lambda at: (at[0].number, at[1])
        )
        return spans


def _part(step: Step, first: int, end: int) -> tuple[RowSpan, ...]:
    """Where rows [first, end) of an element come from; one that cannot be cut counts at its end."""
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
    """The spans of an element but for its first rows."""
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
