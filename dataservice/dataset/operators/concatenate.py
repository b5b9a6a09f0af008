"""The operator that appends one dataset to another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import concat_batches, conform
from dataservice.dataset.node import Node, register_node, sum_of_cardinalities
from dataservice.dataset.operators.base import RowOperator
from dataservice.dataset.sources.reference import fits, lacks_type
from dataservice.dataset.stream import (
    SAMPLE_ROWS,
    BatchStream,
    RunContext,
    State,
    SuccessiveStream,
    Transform,
    TransformStream,
)
from dataservice.errors import InvalidArgumentError

_WHAT = "the rows of the dataset given to concatenate"


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """All elements of `first`, then those of `second`, which get the schema of `first`.

    A column whose type in `first` is null, for lack of values, gets its type from a later part.
    """

    kind: ClassVar[str] = "concatenate"
    absorbs_first: ClassVar[bool] = True
    first: Node
    second: Node
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        if self.first.batched != self.second.batched:
            raise InvalidArgumentError(
                "concatenate takes two datasets of rows or two of batches; "
                f"the {'first' if self.first.batched else 'second'} one alone is batched"
            )

    @functools.cached_property
    def batched(self) -> bool:  # type: ignore[override]
        return self.first.batched

    @classmethod
    def of(cls, first: Node, second: Node) -> Node:
        """Returns a chain of both; the parts of a `second` that is a chain are appended one by one.

        A chain nested in `first` runs as one stream, so that long chains do not nest calls.
        """
        parts: tuple[Node, ...] = (second,)
        if isinstance(second, Concatenate) and second.schema is None:
            parts = second.parts
        return functools.reduce(cls, parts, first)

    @property
    def chain(self) -> tuple[Concatenate, ...]:
        """The concatenations nested in `first`, the innermost first, and this one at the end."""
        found, node = [self], self.first
        while isinstance(node, Concatenate):
            found.append(node)
            node = node.first
        return tuple(reversed(found))

    @property
    def parts(self) -> tuple[Node, ...]:
        """All datasets that the chain joins, in order."""
        chain = self.chain
        return (chain[0].first, *(node.second for node in chain))

    def open(self, context: RunContext) -> BatchStream:
        return _ConcatenateStream(self, dataclasses.replace(context, split_order=None))

    def common_schema(self, context: RunContext) -> pa.Schema:
        """Returns the schema of the rows: the plan's, or that of a sample of the first part."""
        return self.schema or self.completed(self.parts[0].sample(context).schema, context)

    def completed(self, first: pa.Schema, context: RunContext) -> pa.Schema:
        """Returns the first part's schema, with types from later parts where it has the type null.

        If the plan has a schema, returns that.
        """
        return self.schema or completed_by(self.parts[1:], first, context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        alike = samples_alike(self.parts, context, what=_WHAT)
        some = [sample for sample in alike if sample.num_rows] or alike
        # A larger sample is asked for if the rows of the first part were not enough.
        return concat_batches(some) if context.sample_rows > SAMPLE_ROWS else some[0]

    def cardinality(self) -> int:
        return sum_of_cardinalities([part.cardinality() for part in self.parts])


def completed_by(others: Iterable[Node], first: pa.Schema, context: RunContext) -> pa.Schema:
    """Returns `first`, with types from samples of the `others` where it has the type null.

    Samples them only then, since that runs their sources and functions a second time.
    """
    if not any(lacks_type(kind) for kind in first.types):
        return first
    return completed_schema([first, *(node.sample(context).schema for node in others)])


def samples_alike(nodes: Iterable[Node], context: RunContext, *, what: str) -> list[pa.RecordBatch]:
    """Returns a sample of each node, all with the completed schema of the first."""
    samples = [node.sample(context) for node in nodes]
    schema = completed_schema([sample.schema for sample in samples])
    return [conform(sample, schema, what=what) for sample in samples]


def completed_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the first schema, with types from the others where it has the type null."""
    first, *others = schemas
    for index, field in enumerate(first):
        found = [other.field(field.name) for other in others if field.name in other.names]
        told = [f for f in found if fits(field.type, f.type) and not lacks_type(f.type)]
        if told and lacks_type(field.type):
            first = first.set(index, told[0])
    return first


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Conform(RowOperator):
    """Puts the columns in the order of `schema` and casts them to its types."""

    kind: ClassVar[str] = "conform"
    schema: pa.Schema

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        return lambda batch, _location: conform(batch, self.schema, what=_WHAT)


class _ConcatenateStream(SuccessiveStream):
    """The parts of a chain one after the other."""

    def __init__(self, node: Concatenate, context: RunContext) -> None:
        super().__init__()
        self._node = node
        self._parts = node.parts
        self._context = context
        self._part = 0
        self._schema: pa.Schema | None = None

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = next(self._opened(), None)
            if batch is not None:
                if self._schema is None:
                    self._schema = self._node.completed(batch.schema, self._context)
                return conform(batch, self._schema, what=_WHAT)
            if self._part == len(self._parts) - 1:
                raise StopIteration
            self.close()
            self._part += 1

    def _opened(self) -> BatchStream:
        if self._stream is None:
            if self._part == 0:
                self._stream = self._parts[0].run(self._context)
            else:
                # The schema of batches already read is preferred: a sample would run the sources
                # and functions of the first part a second time.
                self._schema = self._schema or self._node.common_schema(self._context)
                schema = self._schema
                self._stream = TransformStream(
                    self._parts[self._part].run(self._context),
                    lambda batch, _location: conform(batch, schema, what=_WHAT),
                )
        return self._stream

    def state(self) -> State:
        return {"part": self._part, "of": len(self._parts), "input": self._opened().state()}

    def restore(self, state: State) -> None:
        self._part, inner = _part_at(state, len(self._parts))
        self._opened().restore(inner)


def _part_at(state: State, parts: int) -> tuple[int, State]:
    """Returns the part that a position is in, and the position within that part.

    A position without "of" has an older, nested format, in which each concatenation has two parts:
    the first of them is the concatenation before it, if there is one.
    """
    if "of" in state:
        return int(state["part"]), state["input"]
    part = parts - 1
    while not state["part"] and part > 1:
        state = state["input"]
        part -= 1
    return (part if state["part"] else 0), state["input"]
