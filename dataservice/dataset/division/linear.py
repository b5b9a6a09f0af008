"""The form of a plan that a service can divide: concatenated segments, repeated, then batched.

Responsible for the parts of such a plan, and for taking operators off a plan and applying them to
another. Knows nothing of how a plan is brought into this form (`linearise`). Invariant: an operator
that was taken out still knows whether its input is in batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from dataservice.dataset.division.segments import Segment
from dataservice.dataset.node import Node, register_node
from dataservice.dataset.operators import Batch, Repeat, RowOperator
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.errors import InternalError
from dataservice.sharding import Split, bytes_of_lines


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Detached(Node):
    """A placeholder for the input of an operator that was taken out of its plan."""

    kind = "detached"
    is_batched: bool = False

    @property
    def batched(self) -> bool:
        return self.is_batched

    def open(self, context: RunContext) -> BatchStream:  # noqa: ARG002
        raise InternalError("an operator taken out of its plan has no input to open")

    def sample(self, context: RunContext) -> pa.RecordBatch:  # noqa: ARG002
        raise InternalError("an operator taken out of its plan has no input to sample")


@dataclasses.dataclass(frozen=True)
class Linear:
    """A plan in the form that a service divides.

    The plan reads the `segments` one after the other, takes rows [skip, skip + take) of them, does
    so `repeat` times (None: endlessly), makes batches of them by `batch`, if there is one, and
    applies the `batch_operators` to each batch. With `ends_passes` no batch has rows of two passes,
    as when `repeat` comes after `batch`. `buffer_size` is that of the largest shuffle,
    `shuffle_seed` the seed of the first shuffle.

    With `forms_elements` the segments yield elements, each made from rows of one window, and there
    is no `batch`; windows should then have `group_rows` rows. `cycle` is the number of elements of
    the sources that are interleaved at a time, or 0; with it, windows are measured in elements,
    since the number of rows is not known.
    """

    segments: tuple[Segment, ...]
    batch: Batch | None = None
    batch_operators: tuple[RowOperator, ...] = ()
    repeat: int | None = 1
    skip: int = 0
    take: int | None = None
    shuffle_seed: int | None = None
    reshuffles: bool = True
    buffer_size: int = 0
    ends_passes: bool = False
    forms_elements: bool = False
    group_rows: int = 0
    cycle: int = 0

    @property
    def is_batched(self) -> bool:
        """True if the elements of the plan are batches."""
        return self.batch is not None or self.forms_elements

    @property
    def shuffles(self) -> bool:
        """True if the order of the splits is permuted."""
        return self.shuffle_seed is not None

    @property
    def is_limited(self) -> bool:
        """True if rows are left out by their number over all segments."""
        return self.skip > 0 or self.take is not None

    @property
    def batch_size(self) -> int | None:
        """The rows that `batch` puts into a batch; None without it."""
        return None if self.batch is None else self.batch.rows

    @property
    def drop_remainder(self) -> bool:
        """True if a last batch that is too small is left out."""
        return self.batch is not None and self.batch.drop_remainder

    def describe(self, split: Split) -> str:
        """Returns a description of the rows of a split, for messages."""
        source = self.segments[split.segment].source
        if split.rows is None:
            return f"{split.path}{bytes_of_lines(split)}" if split.path else source.kind
        return source.describe(split, 0, split.rows)


def without_tail(root: Node) -> tuple[Node, list[Operator | Repeat]]:
    """Splits a divisible plan into the part whose elements are rows, and the operators over it.

    The operators are in the order in which they are applied.
    """
    tail: list[Operator | Repeat] = []
    node = root
    while node.batched and isinstance(node, Operator | Repeat):
        tail.append(node)
        node = node.input
    return node, tail[::-1]


def with_tail(node: Node, tail: Sequence[Operator | Repeat]) -> Node:
    """Returns the plan with these operators applied, in order."""
    for operator in tail:
        node = operator.with_inputs(node)
    return node
