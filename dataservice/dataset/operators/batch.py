"""The operator that makes record batches of n rows the elements."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.padded_columns import unmarked
from dataservice.dataset.stream import (
    BatchStream,
    OverStream,
    RowCutter,
    RunContext,
    State,
    TransformStream,
)
from dataservice.runtime.arguments import check_true_or_false, integer_at_least


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Batch(Operator):
    """Cuts the rows into batches of `rows`; the last may be smaller, or is left out."""

    kind: ClassVar[str] = "batch"
    rows: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", integer_at_least(self.rows, 1, "batch size"))
        check_true_or_false(drop_remainder=self.drop_remainder)

    @property
    def batched(self) -> bool:
        return True

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        rows = rows_of(stream) if self.input.batched else stream
        return _BatchCutStream(rows, self.rows, self.drop_remainder)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return unmarked(self.input.sample(context))

    def cardinality(self) -> int:
        rows = self.input.cardinality()
        if rows in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY) or not self.input.batched:
            return rows if rows < 0 else self._batches(rows)
        return UNKNOWN_CARDINALITY

    def _batches(self, rows: int) -> int:
        return rows // self.rows if self.drop_remainder else -(-rows // self.rows)


def rows_of(stream: BatchStream) -> BatchStream:
    """Returns the rows of batches without the mark of padding, which holds within a batch only."""
    return TransformStream(stream, lambda batch, _location: unmarked(batch), one_to_one=True)


class _BatchCutStream(OverStream):
    """Batches of exact size; a batch that lies within one chunk is a slice of it, not a copy."""

    def __init__(self, stream: BatchStream, rows: int, drop_remainder: bool) -> None:
        self._cutter = RowCutter(stream)
        super().__init__(self._cutter)
        self._rows = rows
        self._drop_remainder = drop_remainder

    def __next__(self) -> pa.RecordBatch:
        pieces = self._cutter.cut(self._rows)
        if not pieces:
            raise StopIteration
        if self._drop_remainder and sum(piece.num_rows for piece in pieces) < self._rows:
            raise StopIteration
        return concat_batches(pieces)

    def state_after(self, state: State, rows: int) -> State | None:
        return self._cutter.state_after(state, rows)
