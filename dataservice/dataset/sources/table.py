"""The source of a table in memory. Invariant: reading copies nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.node import register_node
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.dataset.sources.base import Source, index_splits
from dataservice.dataset.stream import CHUNK_ROWS, RunContext
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.sharding import Split


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class TableSource(Source):
    """The rows of an Arrow table; encoded columns are decoded once, when the source is made."""

    kind: ClassVar[str] = "table"
    in_memory: ClassVar[bool] = True
    table: pa.Table

    def __post_init__(self) -> None:
        if not isinstance(self.table, pa.Table):
            raise InvalidTypeError(
                f"from_table takes a pyarrow.Table, got {type(self.table).__name__}; write "
                "from_table(pyarrow.table(frame)) for a DataFrame, from_numpy(arrays) for a dict"
            )
        if not self.table.num_columns:
            raise InvalidArgumentError("a table without columns has no rows to read")
        schema = plain_schema(self.table.schema)
        if not self.table.schema.equals(schema, check_metadata=True):
            batches = [plain_batch(batch, schema) for batch in self.table.to_batches()]
            object.__setattr__(self, "table", pa.Table.from_batches(batches, schema=schema))

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def splits(self) -> Iterator[Split]:
        return index_splits(self.table.num_rows)

    def sequence(self) -> Iterator[Split]:
        yield Split(stop=self.table.num_rows, rows=self.table.num_rows)

    def read(
        self,
        split: Split,
        first_row: int,
        context: RunContext,  # noqa: ARG002
    ) -> Generator[pa.RecordBatch, None, None]:
        first = split.start + first_row
        part = self.table.slice(first, split.stop - first)
        # Cut lazily: passes of which only a few rows are taken must not cut the whole table.
        yield from part.to_reader(max_chunksize=CHUNK_ROWS)

    def empty(self) -> pa.RecordBatch:
        return no_rows(self.table.schema)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return f"table rows {split.start + first_row}..{split.start + end_row - 1}"

    def cardinality(self) -> int:
        return self.table.num_rows
