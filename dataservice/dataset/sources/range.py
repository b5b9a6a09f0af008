"""The source of consecutive integers. Invariant: row i holds start + i * step."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.node import register_node
from dataservice.dataset.sources.base import Source, index_splits
from dataservice.dataset.stream import CHUNK_ROWS, RunContext
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.number_arrays import from_numbers
from dataservice.sharding import Split

_SCHEMA: Final = pa.schema([pa.field("id", pa.int64())])


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class RangeSource(Source):
    """The integers of Python's range(start, stop, step), in an int64 column `id`."""

    kind: ClassVar[str] = "range"
    in_memory: ClassVar[bool] = True
    start: int
    stop: int
    step: int

    def __post_init__(self) -> None:
        for name in ("start", "stop", "step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise InvalidTypeError(f"range {name} must be an integer, got {value!r}")
            if not -(2**63) <= value < 2**63:
                raise InvalidArgumentError(f"range {name} must fit into 64 bits, got {value!r}")
            object.__setattr__(self, name, int(value))
        if self.step == 0:
            raise InvalidArgumentError("range step must not be zero")
        if self.rows >= 2**63:
            raise InvalidArgumentError(
                f"a range has fewer than 2**63 rows; from {self.start} to {self.stop} by "
                f"{self.step} there are {self.rows}"
            )

    @property
    def rows(self) -> int:
        """Number of integers."""
        return max(0, -((self.start - self.stop) // self.step))

    def splits(self) -> Iterator[Split]:
        return index_splits(self.rows)

    def sequence(self) -> Iterator[Split]:
        yield Split(stop=self.rows, rows=self.rows)

    def read(
        self,
        split: Split,
        first_row: int,
        context: RunContext,  # noqa: ARG002
    ) -> Generator[pa.RecordBatch, None, None]:
        for first in range(split.start + first_row, split.stop, CHUNK_ROWS):
            end = min(first + CHUNK_ROWS, split.stop)
            values = np.arange(end - first, dtype=np.int64)
            if self.step != 1:
                values *= self.step
            values += self.start + first * self.step
            yield pa.RecordBatch.from_arrays([from_numbers(values)], schema=_SCHEMA)

    def empty(self) -> pa.RecordBatch:
        return no_rows(_SCHEMA)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return f"range rows {split.start + first_row}..{split.start + end_row - 1}"

    def cardinality(self) -> int:
        return self.rows
