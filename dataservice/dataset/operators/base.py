"""What all operators share: running over a stream, and checks of their arguments.

Invariant: `open` is `attach` over the stream of the input, so that an operator runs the same over
a whole dataset, over one window of it, and over one batch.
"""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from typing import ClassVar, Final

import pyarrow as pa

from dataservice.dataset.function import Function
from dataservice.dataset.node import (
    UNKNOWN_CARDINALITY,
    Node,
    check_deterministic,
    parameters,
    walk,
)
from dataservice.dataset.stream import (
    SAMPLE_ROWS,
    BatchStream,
    RunContext,
    Transform,
    TransformStream,
)
from dataservice.dataset.tolerance import check_on_error, narrowed

# Functions below are run on these too, and may take milliseconds for a row. The first is near a
# sample of one row, as of a small part, of which the time tells what it takes to open files.
_FURTHER_ROWS: Final = (32, 256, 4_096)
# What a further look may take, as the one before tells.
_PATIENCE_S: Final = 5.0
_IN_EMPTY_SAMPLE: Final = "a sample of no rows, to find the schema; state it with schema="


@dataclasses.dataclass(frozen=True, eq=False)
class Operator(Node):
    """A node with one input, which it reads once from beginning to end."""

    input: Node

    @abstractmethod
    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        """The operator over `stream`, which it owns from now on."""

    def input_context(self, context: RunContext) -> RunContext:
        """The context of its input; the order of rows below it is its own unless it says so."""
        return dataclasses.replace(context, split_order=None)

    def open(self, context: RunContext) -> BatchStream:
        return self.attach(self.input.run(self.input_context(context)), context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return self.input.sample(context)

    def cardinality(self) -> int:
        return self.input.cardinality()


@dataclasses.dataclass(frozen=True, eq=False)
class RowOperator(Operator):
    """An operator that maps each record batch to one, whatever came before it."""

    nested_calls: ClassVar[int] = 2
    # Whether row i of its output is made of row i of its input.
    one_to_one: ClassVar[bool] = True

    @property
    def keeps_rows(self) -> bool:
        """Whether row i of its output is made of row i of its input, whatever the rows are."""
        return self.one_to_one

    @abstractmethod
    def transform(self, context: RunContext) -> Transform:
        """What it does to a batch; functions are loaded here, once per stream."""

    def guarded(self, context: RunContext) -> Transform:
        """As `transform`, and without the rows that it is to leave out."""
        return self.transform(context)

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        return TransformStream(stream, self.guarded(context), one_to_one=self.keeps_rows)

    def input_context(self, context: RunContext) -> RunContext:
        return context

    def sample(self, context: RunContext) -> pa.RecordBatch:
        began_s = time.monotonic()
        sample = self.input.sample(context)
        found = self.tried(sample, context)
        for rows in _FURTHER_ROWS:
            if found.num_rows or not (sample.num_rows and context.sample_rows):
                break
            if rows <= context.sample_rows:
                continue
            passed_s = time.monotonic() - began_s
            if passed_s * rows / sample.num_rows > _PATIENCE_S:
                break
            # A function above may fail on no rows, or make other types of them.
            began_s = time.monotonic()
            sample = self.input.sample(context.sampling(rows))
            found = self.tried(sample, context)
        wanted = max(SAMPLE_ROWS, context.sample_rows)
        return found.slice(0, wanted) if found.num_rows else self.emptied(sample, context)

    def tried(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        """What becomes of a sample of the input."""
        return self.guarded(context)(sample, lambda: _sample_of(self, sample.num_rows))

    def emptied(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        """What stands for a sample of which no row is left."""
        # Rows that a function fails on have no schema: when all of them do, that is the error.
        return self.transform(context)(sample, lambda: _sample_of(self, sample.num_rows))

    def cardinality(self) -> int:
        return self.input.cardinality() if self.keeps_rows else UNKNOWN_CARDINALITY


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionOperator(RowOperator):
    """A row operator with a user's function; "skip" leaves out the rows that it fails on.

    `deterministic` False: the function makes something else of the same rows the next time.
    """

    loose: ClassVar[frozenset[str]] = frozenset({"deterministic"})
    on_error: str = dataclasses.field(default="raise", kw_only=True)
    deterministic: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_on_error(self.on_error)
        check_deterministic(self.deterministic)

    @property
    def unrepeatable(self) -> str:
        functions = (value for _, value in parameters(self) if isinstance(value, Function))
        return "" if self.deterministic else f"{self.kind}({next(functions).name})"

    @property
    def keeps_rows(self) -> bool:
        return self.one_to_one and self.on_error == "raise"

    def guarded(self, context: RunContext) -> Transform:
        plain = self.transform(context)
        return plain if self.on_error == "raise" else narrowed(plain, self.kind, context)


def _sample_of(node: Node, rows: int) -> str:
    """Where the rows of a sample come from: the first source, or its paths."""
    if not rows:
        return _IN_EMPTY_SAMPLE
    source = walk(node)[0]
    name = ", ".join(getattr(source, "paths", ())[:1]) or source.kind
    return f"{name} rows 0..{rows - 1}, a sample that is read here to find the schema"
