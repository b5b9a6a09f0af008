"""The operator that makes the rows of batches the elements again. It copies nothing."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.node import none_or_endless, register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.operators.batch import Batch, rows_of
from dataservice.dataset.padded_columns import unmarked
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.errors import InvalidArgumentError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Unbatch(Operator):
    """The rows of the batches, in order."""

    kind: ClassVar[str] = "unbatch"

    def __post_init__(self) -> None:
        if not self.input.batched:
            raise InvalidArgumentError(
                "unbatch takes a dataset of batches, this one is of rows already; leave it out, "
                "or use flat_map to make several rows of one"
            )

    @property
    def batched(self) -> bool:
        return False

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        return rows_of(stream)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return unmarked(self.input.sample(context))

    def cardinality(self) -> int:
        inner = self.input
        # Asks its input once. Two calls at each level would make a million at twenty levels.
        if isinstance(inner, Batch) and not inner.input.batched:
            rows = inner.input.cardinality()
            return rows - rows % inner.rows if rows > 0 and inner.drop_remainder else rows
        return none_or_endless(inner.cardinality())
