"""The operator that numbers the elements."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.stream import BatchStream, OverStream, RunContext, State
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError
from dataservice.runtime.arguments import is_integer
from dataservice.runtime.number_arrays import from_numbers


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Enumerate(Operator):
    """Adds an int64 column with the number of each element, counted from `start`.

    After `batch`, all rows of a batch have the batch's number.
    """

    kind: ClassVar[str] = "enumerate"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"start"})
    name: str = "index"
    start: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            start = f"; write enumerate(start={self.name!r})" if is_integer(self.name) else ""
            raise InvalidTypeError(f"enumerate takes a column name, got {self.name!r}{start}")
        if not is_integer(self.start):
            raise InvalidTypeError(f"enumerate start must be an integer, got {self.start!r}")
        if not -(1 << 63) <= self.start < 1 << 63:
            raise InvalidArgumentError(f"enumerate start must fit into int64, got {self.start}")
        object.__setattr__(self, "start", int(self.start))

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        return _EnumerateStream(stream, self.name, self.start, whole_batches=self.batched)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        batch = self.input.sample(context)
        return _with_numbers(batch, self.name, np.arange(batch.num_rows, dtype=np.int64))


def _with_numbers(batch: pa.RecordBatch, name: str, numbers: np.ndarray) -> pa.RecordBatch:
    if name in batch.schema.names:
        raise SchemaError(f"enumerate: there is a column {name!r} already; give another name")
    return batch.append_column(name, from_numbers(numbers))


class _EnumerateStream(OverStream):
    def __init__(self, stream: BatchStream, name: str, start: int, *, whole_batches: bool) -> None:
        super().__init__(stream)
        self._name = name
        self._start = start
        self._whole_batches = whole_batches
        self._next = 0  # number of the next element, not counting `start`

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._stream)
        rows, first = batch.num_rows, self._start + self._next
        if self._whole_batches:
            self._next += 1
            numbers = np.full(rows, first, dtype=np.int64)
        else:
            self._next += rows
            numbers = np.arange(first, first + rows, dtype=np.int64)
        return _with_numbers(batch, self._name, numbers)

    def state(self) -> State:
        return {"input": self._stream.state(), "next": self._next}

    def restore(self, state: State) -> None:
        self._stream.restore(state["input"])
        self._next = int(state["next"])

    def state_after(self, state: State, rows: int) -> State | None:
        inner = None if self._whole_batches else self._stream.state_after(state["input"], rows)
        return None if inner is None else {"input": inner, "next": int(state["next"]) + rows}
