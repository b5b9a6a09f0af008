"""The base class of sources of text, whose columns and types are stated or inferred.

A subclass defines how types are inferred from the first block of a file, and which files are read
in parts. Knows no file format. Invariant: all rows of all files have one schema.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.sources.files import InputFile, first_readable
from dataservice.dataset.sources.opening import can_seek, is_compressed
from dataservice.dataset.sources.paths import is_local
from dataservice.dataset.sources.reference import Reference, completed
from dataservice.dataset.sources.text_parts import is_large, part_of, splits_of
from dataservice.dataset.sources.whole_files import WholeFilesSource
from dataservice.errors import SourceError
from dataservice.sharding import Split
from dataservice.split_table import SplitTable


class TextFilesSource(WholeFilesSource):
    """The rows of text files; with `schema`, exactly its columns with its types."""

    schema: pa.Schema | None

    def splits(self) -> Iterator[Split]:
        return self._splits_of(self.files())

    def plan_table(self) -> SplitTable:
        files = list(self.files())
        if not any(map(self._is_divisible, files)):
            return SplitTable.of_files(files)
        return SplitTable.of(list(self._splits_of(files)))

    def _splits_of(self, files: Iterable[InputFile]) -> Iterator[Split]:
        # Found for one file only, as it is opened for it: the others are in the same store.
        seeks: bool | None = None
        for file in files:
            in_parts = self._is_divisible(file)
            if in_parts and not is_local(file.path):
                seeks = can_seek(file.path, self.storage_options) if seeks is None else seeks
                in_parts = seeks
            yield from splits_of(file) if in_parts else (file.as_split(),)

    def _is_divisible(self, file: InputFile) -> bool:
        """True if the file is so large, and of such a kind, that it should be read in parts."""
        if not self.has_cuts or not is_large(file):
            return False
        return not is_compressed(file.path, self.storage_options)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return super().describe(split, first_row, end_row) + part_of(split).suffix

    def empty(self) -> pa.RecordBatch:
        return no_rows(self.row_schema)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns and types of all rows."""
        return self.reference.schema if self.schema is None else self._stated_schema

    @functools.cached_property
    def reference(self) -> Reference:
        """The first file with rows, and the types found in its first block."""
        files = self.files()
        first = first_readable(files, self.on_error, self.infer, self.has_types)
        if not len(first.schema):
            raise SourceError(
                f"{first.path!r} is empty, so that the columns are not known; state them with "
                "schema="
            )
        return completed(first, None, files, self.infer, self.on_error)

    @functools.cached_property
    def _stated_schema(self) -> pa.Schema:
        # Not when the dataset is made: it takes 0.3 ms a column.
        self.require_convertible(self.schema)
        return self.schema

    @abstractmethod
    def infer(self, file: InputFile) -> Reference:
        """Returns the columns and types of the first block of a file; none for an empty one."""

    def has_types(self, inferred: Reference) -> bool:
        """True if a file tells enough to be the reference."""
        return len(inferred.schema) > 0

    @abstractmethod
    def require_convertible(self, schema: pa.Schema) -> None:
        """Raises InvalidArgumentError for a column of a type that the text cannot be read as."""
