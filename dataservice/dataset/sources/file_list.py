"""The source of file names: one row for each file that a pattern matches.

Opens no file. Invariant: names come in the order of the patterns, the matches of each sorted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.node import register_node
from dataservice.dataset.sources.base import Source
from dataservice.dataset.sources.files import InputFile, check_unchanged, find_files
from dataservice.dataset.sources.paths import check_paths, check_storage_options, unreadable
from dataservice.dataset.stream import CHUNK_ROWS, RunContext
from dataservice.sharding import Split

_SCHEMA = pa.schema([("path", pa.string())])


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class FileListSource(Source):
    """The matching paths in a string column `path`; a directory stands for all files below it."""

    kind: ClassVar[str] = "list_files"
    patterns: tuple[str, ...]
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", check_paths(self.patterns, "list_files"))
        check_storage_options(self.storage_options)

    def files(self) -> Iterator[InputFile]:
        return find_files(self.patterns, ("",), self.storage_options)

    def splits(self) -> Iterator[Split]:
        # A split is the name itself, so that every machine yields the names found in planning.
        for file in self.files():
            yield file.as_split()._replace(stop=1, rows=1)

    def sequence(self) -> Iterator[Split]:
        yield Split()

    def read(
        self,
        split: Split,
        first_row: int,
        context: RunContext,  # noqa: ARG002
    ) -> Generator[pa.RecordBatch, None, None]:
        if split.path is not None and split.version:
            # Operators may read the named file, and have to get the same rows in each replay.
            check_unchanged(split, self.storage_options)
        paths = [file.path for file in self.files()] if split.path is None else [split.path]
        for first in range(first_row, len(paths), CHUNK_ROWS):
            yield _named(paths[first : first + CHUNK_ROWS])

    def empty(self) -> pa.RecordBatch:
        return no_rows(_SCHEMA)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return _named(
            [file.path for file in itertools.islice(self.files(), max(1, context.sample_rows))]
        )

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        if split.path is not None:
            return f"the name {split.path}"
        return f"names {first_row}..{end_row - 1} of {list(self.patterns)}"


def _named(paths: list[str]) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_arrays([pa.array(paths, pa.string())], schema=_SCHEMA)
    except UnicodeEncodeError as error:
        raise unreadable(error.object, error) from error
