"""What sources of columnar files share: the choice of columns, and files that must agree.

Invariant: every file has each wanted column with the type that the reference tells, or, as writers
do where no row has a value, with the type null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import pyarrow as pa

from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.reference import Reference, fits, lacks_type
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError, SourceError
from dataservice.sharding import Split

PlanFile: TypeAlias = Callable[[InputFile], list[Split]]

_MAX_NAMED: Final = 4


def named_parts(kind: str, numbers: Sequence[int]) -> str:
    """The row groups or record batches of a split, for messages: a file may have thousands."""
    named = ", ".join(str(number) for number in numbers[:_MAX_NAMED])
    left = len(numbers) - _MAX_NAMED
    return f"{kind} {named}" + (f" and {left} more," if left > 0 else "")


def chosen_columns(columns: Any) -> tuple[str, ...] | None:
    """One name or several as a tuple, None for all; InvalidTypeError for anything else."""
    if columns is None:
        return None
    if isinstance(columns, str):
        columns = (columns,)
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise InvalidTypeError(f"columns must be a list of column names, got {columns!r}")
    if not columns:
        raise InvalidArgumentError("columns must name at least one column")
    return tuple(columns)


def check_types(path: str, found: pa.Schema, expected: pa.Schema, reference: Reference) -> None:
    """SchemaError naming both files unless `path` has all columns as `reference` tells them."""
    for field in expected:
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
            f"{reference.told_by(field.name)!r}, and {path!r} {has}; {remedy}"
        )


def plan_file(file: InputFile, on_error: str, plan: PlanFile) -> list[Split]:
    """What `plan` says; with "skip", one split for a file that cannot be planned.

    Whoever reads it meets the error, and counts it.
    """
    try:
        return plan(file)
    except (SourceError, SchemaError):
        if on_error != "skip":
            raise
        return [Split(path=file.path, size_bytes=file.size_bytes, version=file.version)]


def plan_files(
    files: Sequence[InputFile], on_error: str, plan: PlanFile, threads: int
) -> list[Split]:
    """As `plan_file` for each, several at a time."""
    with ThreadPoolExecutor(min(threads, len(files))) as pool:
        parts = pool.map(lambda file: plan_file(file, on_error, plan), files)
        return [split for part in parts for split in part]
