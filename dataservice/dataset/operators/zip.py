"""The operator that puts datasets side by side: row i has the columns of row i of every dataset.

Invariant: it ends with the shortest of its inputs; only rows of the same number are put side by
side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Node,
    register_node,
)
from dataservice.dataset.stream import CHUNK_ROWS, BatchStream, RowCutter, RunContext, State
from dataservice.errors import InvalidArgumentError, SchemaError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Zip(Node):
    """All columns of several datasets of rows, or of batches of equal sizes."""

    kind: ClassVar[str] = "zip"
    variadic: ClassVar[str | None] = "datasets"
    datasets: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.datasets:
            raise InvalidArgumentError("zip takes at least one dataset, got none")
        if len({node.batched for node in self.datasets}) > 1:
            raise InvalidArgumentError(
                "zip takes datasets of rows or datasets of batches, not both; "
                "apply batch to all of them or after zip"
            )

    def open(self, context: RunContext) -> BatchStream:
        context = dataclasses.replace(context, split_order=None)
        return ZipStream([node.run(context) for node in self.datasets], self.batched)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        samples = [node.sample(context) for node in self.datasets]
        rows = min(sample.num_rows for sample in samples)
        return side_by_side([sample.slice(0, rows) for sample in samples])

    def cardinality(self) -> int:
        parts = [node.cardinality() for node in self.datasets]
        finite = [count for count in parts if count >= 0]
        if 0 in finite or UNKNOWN_CARDINALITY not in parts:
            return min(finite, default=INFINITE_CARDINALITY)
        return UNKNOWN_CARDINALITY


def side_by_side(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns one batch with the columns of all batches, which have equally many rows.

    Copies nothing. SchemaError for a column name that occurs twice.
    """
    fields = [field for batch in batches for field in batch.schema]
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"zip: several datasets have the columns {twice}; rename them before zip")
    arrays = [column for batch in batches for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class ZipStream(BatchStream):
    """The rows of several streams side by side, cut into batches like those of the first stream."""

    def __init__(self, streams: Sequence[BatchStream], whole_batches: bool) -> None:
        self._cutters = [RowCutter(stream) for stream in streams]
        self._whole_batches = whole_batches

    def __next__(self) -> pa.RecordBatch:
        batches: list[pa.RecordBatch] = []
        for cutter in self._cutters:
            if self._whole_batches or not batches:
                piece = cutter.piece(None if self._whole_batches else CHUNK_ROWS)
                pieces = [] if piece is None else [piece]
            else:
                pieces = cutter.cut(batches[-1].num_rows)
            if not pieces:
                raise StopIteration
            batches.append(concat_batches(pieces))
        return side_by_side(self._trimmed(batches))

    def _trimmed(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        sizes = [batch.num_rows for batch in batches]
        if self._whole_batches and len(set(sizes)) > 1:
            raise SchemaError(
                f"zip: batches that belong together have {sizes} rows; give all datasets one batch "
                "size, and drop_remainder=True where they end at other rows, or zip before batch"
            )
        return [batch.slice(0, min(sizes)) for batch in batches]

    def state(self) -> State:
        return {"inputs": [cutter.state() for cutter in self._cutters]}

    def restore(self, state: State) -> None:
        for cutter, saved in zip(self._cutters, state["inputs"], strict=True):
            cutter.restore(saved)

    def close(self) -> None:
        for cutter in self._cutters:
            cutter.close()

    def location(self) -> str:
        return " beside ".join(cutter.location() for cutter in self._cutters)
