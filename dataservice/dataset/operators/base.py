"""The base classes of operators: how an operator runs over a stream and samples its input.

Knows no particular operator. Invariant: `open` is `attach` over the stream of the input, so that an
operator runs in the same way over a whole dataset, over one window of it, and over one batch.
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
from dataservice.dataset.tolerance import narrowed
from dataservice.job_options import ON_ERROR
from dataservice.runtime.arguments import check_choice, check_true_or_false

# Sizes of further samples, tried in turn while an operator leaves no row of a sample. The functions
# of the operators below run on them too, and may take milliseconds for a row. The first size is
# small because a sample before it may have one row, and takes mainly the time to open files.
_FURTHER_ROWS: Final = (32, 256, 4_096)
# A further sample is taken only if, judging by the one before, it takes no longer than this.
_PATIENCE_S: Final = 5.0
_IN_EMPTY_SAMPLE: Final = "a sample of no rows, to find the schema; state it with schema="


@dataclasses.dataclass(frozen=True, eq=False)
class Operator(Node):
    """A node with one input, which it reads once from beginning to end."""

    input: Node

    @abstractmethod
    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        """Returns the operator's stream over `stream`, which it owns and closes."""

    def input_context(self, context: RunContext) -> RunContext:
        """Returns the context for its input.

        Unless the operator overrides this, its input is read in the input's own order of splits,
        whatever shuffle is above.
        """
        return dataclasses.replace(context, split_order=None)

    def open(self, context: RunContext) -> BatchStream:
        return self.attach(self.input.run(self.input_context(context)), context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return self.input.sample(context)

    def cardinality(self) -> int:
        return self.input.cardinality()


@dataclasses.dataclass(frozen=True, eq=False)
class RowOperator(Operator):
    """An operator that maps each record batch to one, independently of the batches before it."""

    nested_calls: ClassVar[int] = 2
    # Whether row i of its output is made of row i of its input.
    one_to_one: ClassVar[bool] = True

    @property
    def keeps_rows(self) -> bool:
        """Whether row i of its output is always made of row i of its input, even after failures."""
        return self.one_to_one

    @property
    def ignores_batches(self) -> bool:
        """Whether a row's output is the same whichever rows are in its batch, and is one row."""
        return False

    @abstractmethod
    def transform(self, context: RunContext) -> Transform:
        """Returns the function that maps a batch; user functions are loaded here, once a stream."""

    def guarded(self, context: RunContext) -> Transform:
        """Returns `transform`, made to leave out the rows that fail if the operator says so."""
        return self.transform(context)

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        return TransformStream(stream, self.guarded(context), one_to_one=self.keeps_rows)

    def input_context(self, context: RunContext) -> RunContext:
        return context

    def sample(self, context: RunContext) -> pa.RecordBatch:
        began_s = time.monotonic()
        sample = self.input.sample(context)
        found = self.transform_sample(sample, context)
        for rows in _FURTHER_ROWS:
            if found.num_rows or not (sample.num_rows and context.sample_rows):
                break
            if rows <= context.sample_rows:
                continue
            passed_s = time.monotonic() - began_s
            if passed_s * rows / sample.num_rows > _PATIENCE_S:
                break
            # Looks further because a function above may fail on no rows, or return other types.
            began_s = time.monotonic()
            sample = self.input.sample(context.sampling(rows))
            found = self.transform_sample(sample, context)
        wanted = max(SAMPLE_ROWS, context.sample_rows)
        return found.slice(0, wanted) if found.num_rows else self.empty_sample(sample, context)

    def transform_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        """Returns what the operator makes of a sample of its input."""
        return self.guarded(context)(sample, lambda: _sample_of(self, sample.num_rows))

    def empty_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        """Returns what stands for a sample of which the operator leaves no row."""
        # Not guarded: if a function fails on all rows there is no schema, so its error is raised.
        return self.transform(context)(sample, lambda: _sample_of(self, sample.num_rows))

    def cardinality(self) -> int:
        return self.input.cardinality() if self.keeps_rows else UNKNOWN_CARDINALITY


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionOperator(RowOperator):
    """A row operator with a user's function; on_error="skip" leaves out the rows that it fails on.

    `deterministic` False says that the function may return something else for the same rows when
    it runs again.
    """

    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"deterministic"})
    on_error: str = dataclasses.field(default="raise", kw_only=True)
    deterministic: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)
        check_true_or_false(deterministic=self.deterministic)

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
    """Says where the rows of a sample come from: the first source's first path, or its kind."""
    if not rows:
        return _IN_EMPTY_SAMPLE
    source = walk(node)[0]
    name = ", ".join(getattr(source, "paths", ())[:1]) or source.kind
    return f"{name} rows 0..{rows - 1}, a sample that is read here to find the schema"
