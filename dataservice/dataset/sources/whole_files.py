"""The base class of sources of files that can only be read from their beginning.

There is one split per file, unless a subclass divides it. A subclass defines how a split is read
as a stream of batches; skipping to a row and naming files and rows are done here. Knows no file
format. Invariant: a split is read in the same batches every time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing

import pyarrow as pa

from dataservice.dataset.columns import require_distinct
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources.base import FileSource
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.opening import COMPRESSIONS
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidTypeError
from dataservice.sharding import Split
from dataservice.split_table import SplitTable


class WholeFilesSource(FileSource):
    """The rows of files whose numbers of rows are not known without reading them."""

    @property
    def counts_rows(self) -> bool:
        return False

    @abstractmethod
    def batches(self, split: Split, context: RunContext) -> Generator[pa.RecordBatch, None, None]:
        """Yields all rows of a split."""

    def splits(self) -> Iterator[Split]:
        return map(InputFile.as_split, self.files())

    def plan_table(self) -> SplitTable:
        return SplitTable.of_files(self.files())

    def _rows(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        position = 0
        with closing(self.batches(split, context)) as batches:
            for batch in batches:
                position += batch.num_rows
                new_rows = min(position - first_row, batch.num_rows)
                if new_rows > 0:
                    yield batch.slice(batch.num_rows - new_rows)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return f"{split.path} rows {first_row}..{end_row - 1}"


def stated_schema(schema: pa.Schema, operator: str) -> pa.Schema:
    """Returns the schema that a user gave to a source, checked and in plain types."""
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InvalidTypeError(f"schema must be a pyarrow.Schema with columns, got {schema!r}")
    require_distinct(schema.names, what=f"the schema given to {operator}")
    return plain_schema(schema)


def with_compressions(*suffixes: str) -> tuple[str, ...]:
    """Returns the suffixes, plain and followed by each suffix of a compression."""
    return (*suffixes, *(first + second for first in suffixes for second in COMPRESSIONS))
