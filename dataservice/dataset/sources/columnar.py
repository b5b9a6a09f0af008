"""The base class of sources of columnar files: chosen columns, and schemas that must agree.

A subclass defines how a file is planned and how its schema is read. Knows no file format.
Invariant: every file has each wanted column with the type that the reference has, or with the type
null, which writers use where no row has a value.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.columns import require_columns, require_distinct
from dataservice.dataset.expressions import Expression
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources.base import FileSource
from dataservice.dataset.sources.files import InputFile, first_readable
from dataservice.dataset.sources.reference import Reference, completed, fits, lacks_type
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError, SourceError
from dataservice.sharding import Split

_MAX_NAMED: Final = 4
_PLAN_THREADS: Final = 16


class ColumnarSource(FileSource):
    """The chosen `columns` of files whose metadata says where their rows are."""

    columns: tuple[str, ...] | None
    filter: Expression | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "columns", _chosen(self.columns))

    @abstractmethod
    def plan_file(self, file: InputFile) -> list[Split]:
        """Returns the splits of a file; SourceError or SchemaError if it cannot be read."""

    @abstractmethod
    def read_reference(self, file: InputFile) -> Reference:
        """Returns a file's path with its schema."""

    def splits(self) -> Iterator[Split]:
        for file in self.files():
            yield from self._plan_or_skip(file)

    def plan(self) -> list[Split]:
        files = list(self.files())
        _ = self.read_schema  # read once, not by every thread
        with ThreadPoolExecutor(min(_PLAN_THREADS, len(files))) as pool:
            return [split for part in pool.map(self._plan_or_skip, files) for split in part]

    def _plan_or_skip(self, file: InputFile) -> list[Split]:
        """Plans a file; with "skip", returns a single split for a file that cannot be planned.

        Reading that split raises the error again, where it is counted.
        """
        try:
            return self.plan_file(file)
        except (SourceError, SchemaError):
            if self.on_error != "skip":
                raise
            return [file.as_split()]

    @functools.cached_property
    def reference(self) -> Reference:
        """The file that all others must match, and its whole schema."""
        return self.reference_of(self.files())

    def reference_of(self, files: Iterator[InputFile]) -> Reference:
        """Returns the reference for these files; takes no more of them than it needs."""
        read = self.read_reference
        first = first_readable(files, self.on_error, read)
        named = None if self.columns is None else {*self.columns, *self._filtered}
        return completed(first, named, files, read, self.on_error)

    @functools.cached_property
    def read_schema(self) -> pa.Schema:
        """The columns read from each file: the chosen ones, then others that the filter needs."""
        path, whole = self.reference.path, self.reference.schema
        names = list(whole.names if self.columns is None else self.columns)
        require_columns(names, whole.names, what=f"{path!r}")
        extra = sorted(self._filtered.difference(names))
        require_columns(extra, whole.names, what=f"the filter {self.filter!r} over {path!r}")
        read = {*names, *extra}
        require_distinct([name for name in whole.names if name in read], what=f"{path!r}")
        return pa.schema([whole.field(name) for name in (*names, *extra)])

    @property
    def _filtered(self) -> frozenset[str]:
        return frozenset() if self.filter is None else self.filter.columns()

    def check_schema(self, path: str, found: pa.Schema) -> None:
        """Raises SchemaError, naming both files, unless a file has all columns of the reference."""
        # Most files have the same schema, and comparing a thousand columns singly takes 3 ms.
        if any(found.equals(fitting) for fitting in tuple(self._fitting)):
            return
        self._check_columns(path, found)
        self._fitting[:] = [found]

    @functools.cached_property
    def _fitting(self) -> list[pa.Schema]:
        """The schema that was found to fit last, once there is one."""
        return []

    def _check_columns(self, path: str, found: pa.Schema) -> None:
        """Raises SchemaError unless each column to read is in the file, with a type that fits."""
        for field in self.read_schema:
            index = found.get_field_index(field.name)
            actual = None if index < 0 else plain_schema(pa.schema([found.field(index)])).field(0)
            if actual is not None and fits(actual.type, field.type):
                continue
            several = len(found.get_all_field_indices(field.name)) > 1
            has = "has several of that name" if several else "has no such column"
            if actual is not None:
                has = f"has it as {actual.type}"
            remedy = "rewrite that file, or read such files apart and concatenate them"
            if lacks_type(field.type):
                remedy = "name a file first in which it has values"
            raise SchemaError(
                f"the files differ: column {field.name!r} is of type {field.type} in "
                f"{self.reference.path_of_type(field.name)!r}, and {path!r} {has}; {remedy}"
            )


def merged_splits(file: InputFile, parts: Iterable[tuple[int, int]], most_rows: int) -> list[Split]:
    """Returns the splits of a file whose `parts` (number, rows) are row groups or record batches.

    Consecutive parts share a split of at most `most_rows` rows; parts without rows are left out.
    """
    runs: list[tuple[list[int], int]] = []
    for number, rows in parts:
        if not rows:
            continue
        numbers, total = runs[-1] if runs else ([], 0)
        if numbers and numbers[-1] == number - 1 and total + rows <= most_rows:
            numbers.append(number)
            runs[-1] = numbers, total + rows
        else:
            runs.append(([number], rows))
    base = file.as_split()
    return [
        base._replace(row_groups=tuple(numbers), stop=rows, rows=rows) for numbers, rows in runs
    ]


def named_parts(kind: str, numbers: Sequence[int]) -> str:
    """Names the row groups or record batches of a split, for messages; only the first few."""
    named = ", ".join(str(number) for number in numbers[:_MAX_NAMED])
    left = len(numbers) - _MAX_NAMED
    return f"{kind} {named}" + (f" and {left} more," if left > 0 else "")


def _chosen(columns: Any) -> tuple[str, ...] | None:
    """Returns one name or several as a tuple, None for all; InvalidTypeError for anything else.

    InvalidArgumentError for an empty list, and for a name that is listed twice.
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = (columns,)
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise InvalidTypeError(f"columns must be a list of column names, got {columns!r}")
    if not columns:
        raise InvalidArgumentError("columns must name at least one column")
    if len(set(columns)) < len(columns):
        raise InvalidArgumentError(f"columns must name each column once, got {list(columns)}")
    return tuple(columns)
