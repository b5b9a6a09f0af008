"""Datasets inside operators: those that a user's function is given, and those that it returns.

Knows no particular operator. Invariant: a window of rows given to a function is one batch; a window
of batches keeps its batches as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from dataservice.dataset.node import Node
from dataservice.dataset.sources.base import Source
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidTypeError
from dataservice.sharding import Split


@dataclasses.dataclass(frozen=True, eq=False)
class BatchesSource(Source):
    """A source of record batches in memory, yielded as they are cut. Stays within one process."""

    kind: ClassVar[str] = "batches"
    batches: tuple[pa.RecordBatch, ...]
    is_batched: bool

    @property
    def batched(self) -> bool:
        return self.is_batched

    def splits(self) -> Iterator[Split]:
        yield Split(rows=sum(batch.num_rows for batch in self.batches))

    def read(
        self,
        split: Split,  # noqa: ARG002
        first_row: int,
        context: RunContext,  # noqa: ARG002
    ) -> Generator[pa.RecordBatch, None, None]:
        row = 0
        for batch in self.batches:
            if row >= first_row:
                yield batch
            row += batch.num_rows

    def empty(self) -> pa.RecordBatch:
        return self.batches[0].slice(0, 0)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:  # noqa: ARG002
        return f"rows {first_row}..{end_row - 1} of a window"

    def cardinality(self) -> int:
        return len(self.batches) if self.is_batched else sum(b.num_rows for b in self.batches)


Made = TypeVar("Made", bound=Callable[[Node], Any])
_given: list[Callable[[Node], Any]] = []


def given_to_functions(made: Made) -> Made:
    """Class decorator: makes this the class of the datasets that user functions are given.

    Operators cannot import that class, because its module imports them.
    """
    _given[:] = [made]
    return made


def dataset_of(batches: Sequence[pa.RecordBatch], *, batched: bool) -> Any:
    """Returns a Dataset of these batches, at least one; `batched` if each batch is an element."""
    (made,) = _given
    return made(BatchesSource(tuple(batches), batched))


def node_of(value: Any, operator: str) -> Node:
    """Returns the plan of a dataset that a function made; InvalidTypeError for other values."""
    node = getattr(value, "node", None)
    if not isinstance(node, Node):
        raise InvalidTypeError(
            f"the function given to {operator} must return a Dataset, it returned {value!r:.200}"
        )
    return node
