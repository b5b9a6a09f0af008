"""Operators whose column types are those of the first batch that a function returns.

A column without values in that batch, or without values in its lists, gets its type from a sample
if the sample has one. Invariant: a position holds the types, so that the batches after it have the
same types whatever the function returns there; all strings of a batch may be missing, for example.
"""

from __future__ import annotations

import base64
import dataclasses
import logging

import pyarrow as pa

from dataservice.dataset.columns import conform
from dataservice.dataset.node import unrepeatable, walk
from dataservice.dataset.operators.base import FunctionOperator
from dataservice.dataset.operators.concatenate import completed_schema
from dataservice.dataset.sources.reference import lacks_type
from dataservice.dataset.stream import BatchStream, RunContext, State, TransformStream
from dataservice.errors import DataServiceError

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class InferringOperator(FunctionOperator):
    """A function operator with a field `schema`; None means the types of the first batch."""

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

    # The methods below do not call the base class: with fewer nested calls, chains of hundreds of
    # operators fit on Python's stack.

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = self._transform(next(self._stream), self._stream.location)
            if batch.num_rows:
                return batch if self._encoded else self._first(batch)

    def state(self) -> State:
        return self._with_schema(self._stream.state())

    def restore(self, state: State) -> None:
        if _has_schema(state):
            self._encoded = state["schema"]
            self._expect(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._encoded))))
            state = state["input"]
        self._stream.restore(state)

    def state_after(self, state: State, rows: int) -> State | None:
        if not self._one_to_one:
            return None
        inner = self._stream.state_after(state["input"] if _has_schema(state) else state, rows)
        return None if inner is None else self._with_schema(inner)

    def _first(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._completed(batch.schema)
        self._encoded = base64.b64encode(schema.serialize()).decode("ascii")
        if schema.equals(batch.schema):
            return batch
        self._expect(schema)
        return conform(batch, schema, what=f"the values of {self._operator.kind}")

    def _with_schema(self, inner: State) -> State:
        return {"input": inner, "schema": self._encoded} if self._encoded else inner

    def _completed(self, schema: pa.Schema) -> pa.Schema:
        """Returns `schema`, with types from a sample for columns without values."""
        operator = self._operator
        # A source that yields its rows only once must not be sampled while it is read.
        once = unrepeatable(operator) or any(node.kind == "generator" for node in walk(operator))
        if once or not any(map(lacks_type, schema.types)):
            return schema
        context = RunContext(allow_functions=self._context.allow_functions)
        try:
            sample = operator.sample(context)
        except DataServiceError as error:  # files or a service that this process cannot reach
            logger.info("cannot infer the types of %s from a sample: %s", operator.kind, error)
            return schema
        return completed_schema([schema, sample.schema])

    def _expect(self, schema: pa.Schema) -> None:
        known = dataclasses.replace(self._operator, schema=schema)  # type: ignore[call-arg]
        self._transform = known.guarded(self._context)


def _has_schema(state: State) -> bool:
    # The position of a data service is an object, not a dict.
    return isinstance(state, dict) and "schema" in state
