"""Operators whose types are those of the first batch that a function makes.

Invariant: a position holds the types, so that what follows it has them however the function's
result looks where the reading goes on: the strings of a batch may all be missing.
"""

from __future__ import annotations

import base64
import dataclasses

import pyarrow as pa

from dataservice.dataset.operators.base import FunctionOperator
from dataservice.dataset.stream import BatchStream, RunContext, State, TransformStream


@dataclasses.dataclass(frozen=True, eq=False)
class InferringOperator(FunctionOperator):
    """With a field `schema`, None for the types of the first batch."""

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        if not self.lacks_schema:
            return super().attach(stream, context)
        return _InferringStream(stream, self, context)


class _InferringStream(TransformStream):
    def __init__(
        self, stream: BatchStream, operator: InferringOperator, context: RunContext
    ) -> None:
        super().__init__(stream, operator.guarded(context), one_to_one=operator.keeps_rows)
        self._operator = operator
        self._context = context
        self._encoded = ""  # the schema of the batches, once there was one

    def __next__(self) -> pa.RecordBatch:
        batch = super().__next__()
        if not self._encoded:
            self._encoded = base64.b64encode(batch.schema.serialize()).decode("ascii")
        return batch

    def state(self) -> State:
        return self._with_schema(super().state())

    def _with_schema(self, inner: State) -> State:
        return {"input": inner, "schema": self._encoded} if self._encoded else inner

    def restore(self, state: State) -> None:
        if _has_schema(state):
            self._encoded = state["schema"]
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._encoded)))
            known = dataclasses.replace(self._operator, schema=schema)  # type: ignore[call-arg]
            self._transform = known.guarded(self._context)
            state = state["input"]
        super().restore(state)

    def state_after(self, state: State, rows: int) -> State | None:
        inner = super().state_after(state["input"] if _has_schema(state) else state, rows)
        return None if inner is None else self._with_schema(inner)


def _has_schema(state: State) -> bool:
    # The position of a data service is an object of its own.
    return isinstance(state, dict) and "schema" in state
