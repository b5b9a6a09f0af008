"""Operators that count elements: take and skip. An element is a row, or a batch after `batch`."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.node import INFINITE_CARDINALITY, register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.stream import BatchStream, OverStream, RowCutter, RunContext, State
from dataservice.runtime.arguments import integer_at_least


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Take(Operator):
    """The first `count` elements; nothing more is read."""

    kind: ClassVar[str] = "take"
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", integer_at_least(self.count, 0, "take count (-1: all)"))

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        return _TakeStream(stream, self.count, whole_batches=self.batched)

    def cardinality(self) -> int:
        elements = self.input.cardinality()
        if elements == INFINITE_CARDINALITY:
            return self.count
        return elements if elements < 0 else min(elements, self.count)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Skip(Operator):
    """All elements but the first `count`."""

    kind: ClassVar[str] = "skip"
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", integer_at_least(self.count, 0, "skip count (-1: all)"))

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        return _SkipStream(stream, self.count, whole_batches=self.batched)

    def cardinality(self) -> int:
        elements = self.input.cardinality()
        return elements if elements < 0 else max(0, elements - self.count)


class _CountingStream(OverStream):
    """Pieces of a stream, and a count of the elements that are left to take or to skip."""

    def __init__(self, stream: BatchStream, count: int, *, whole_batches: bool) -> None:
        self._cutter = RowCutter(stream)
        super().__init__(self._cutter)
        self._left = count
        self._whole_batches = whole_batches

    def _piece(self, elements: int) -> tuple[pa.RecordBatch | None, int]:
        """Returns the next rows, at most `elements` elements, and how many elements they are."""
        if self._whole_batches:
            return self._cutter.piece(), 1
        piece = self._cutter.piece(elements)
        return piece, 0 if piece is None else piece.num_rows

    def state(self) -> State:
        return {"input": self._cutter.state(), "left": self._left}

    def restore(self, state: State) -> None:
        self._left = int(state["left"])
        self._cutter.restore(state["input"])

    def state_after(self, state: State, rows: int) -> State | None:
        # If elements are batches, a position within one cannot be counted in elements.
        read, left = self._after(int(state["left"]), rows)
        inner = None if self._whole_batches else self._cutter.state_after(state["input"], read)
        return None if inner is None else {"input": inner, "left": left}

    @abstractmethod
    def _after(self, left: int, rows: int) -> tuple[int, int]:
        """Returns the input rows that `rows` rows of output take, and the count left after them."""


class _TakeStream(_CountingStream):
    def _after(self, left: int, rows: int) -> tuple[int, int]:
        return rows, left - rows

    def __next__(self) -> pa.RecordBatch:
        if self._left <= 0:
            raise StopIteration
        piece, elements = self._piece(self._left)
        if piece is None:
            raise StopIteration
        self._left -= elements
        return piece


class _SkipStream(_CountingStream):
    def _after(self, left: int, rows: int) -> tuple[int, int]:
        return left + rows, 0

    def __next__(self) -> pa.RecordBatch:
        while self._left > 0:
            passed = 0 if self._whole_batches else self._cutter.advance(self._left)
            if passed:
                self._left -= passed
                continue
            piece, elements = self._piece(self._left)
            if piece is None:
                raise StopIteration
            self._left -= elements
        return next(self._cutter)
