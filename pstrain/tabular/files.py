"""Opens a user's files as a dataset: Parquet, CSV, JSON lines or Arrow IPC, told by their names.

Knows nothing of what the columns mean. Invariant: whatever is wrong with the files raises an error
that names the file or pattern and the remedy.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from dataservice import Dataset
from dataservice.errors import SchemaError, SourceError, UserFunctionError
from pstrain.errors import DataError, InvalidArgumentError, NotFoundError
from pstrain.output.folders import check_writable

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_KINDS = {
    **dict.fromkeys((".parquet", ".pq", ".parq"), "parquet"),
    **{ending: ending for ending in _SEPARATORS},
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "ipc"),
}
# Types that text files cannot be read as; the columns get the type that their first rows suggest.
_NOT_IN_TEXT = ("halffloat",)
_TYPES_OF_PROGRAMS = re.compile(r"; [^;]*types with schema=")
_ROWS_OF_PROGRAMS = re.compile(r"; from_(csv|json)\([^;]*leaves out such (rows|lines)")
_COLUMNS_OF_PROGRAMS = re.compile(r"; [^;]*columns to read with schema=")
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")


def open_files(
    pattern: str, types: Mapping[str, str] | None = None, delimiter: str | None = None
) -> Dataset:
    """Returns the rows of a file, a folder, a glob, or the URL of one of these.

    ``types``: Arrow types for columns of CSV and JSON files, if the files have them; the types of
    other columns are inferred from the first rows. ``delimiter``: the separator of columns in CSV
    files; None: a comma, in ``.tsv`` a tab. NotFoundError if nothing matches, InvalidArgumentError
    for files of unknown or different kinds or a delimiter for other files than CSV, DataError if
    the files are known to hold no row.
    """
    paths = _paths(pattern)
    kinds = sorted({_kind(path) for path in paths})
    if len(kinds) > 1 or not kinds[0]:
        raise InvalidArgumentError(
            f"{pattern!r} must match files of one kind, told by {', '.join(_KINDS)}; it matches "
            f"{', '.join(sorted(paths)[:3])}"
        )
    if delimiter is not None and kinds[0] not in _SEPARATORS:
        raise InvalidArgumentError(
            f"--delimiter is for CSV files, and {pattern!r} matches {kinds[0]}: leave it out"
        )
    if kinds[0] == "parquet":
        dataset = Dataset.from_parquet(paths)
    elif kinds[0] == "ipc":
        dataset = Dataset.from_ipc(paths)
    elif kinds[0] == "json":
        dataset = _typed(partial(Dataset.from_json, paths), types or {})
    else:
        separator = delimiter or _SEPARATORS[kinds[0]]
        read = partial(Dataset.from_csv, paths, delimiter=separator)
        dataset = _typed(read, types or {})
    if dataset.cardinality() == 0:
        raise DataError(f"{pattern!r} holds no rows")
    return dataset


def open_typed(
    data: str,
    types: Mapping[str, str],
    stated: Mapping[str, str],
    delimiter: str | None,
) -> Dataset:
    """Opens rows by ``types``; columns in ``stated`` must exist and have the type stated there."""
    rows = open_files(data, types, delimiter)
    check_columns(rows, [*stated], data)
    check_types(rows, stated, data)
    return rows


def check_columns(dataset: Dataset, columns: Sequence[str], where: str) -> None:
    """Raises InvalidArgumentError, naming missing and present columns, if any is missing."""
    present = dataset.schema.names
    known = set(present)
    missing = [name for name in columns if name not in known]
    if missing:
        is_uncut = len(present) == 1 and any(sign in present[0] for sign in ";\t|")
        raise InvalidArgumentError(
            f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(present)}"
            + (": give what stands between columns by --delimiter" if is_uncut else "")
        )


def check_types(dataset: Dataset, types: Mapping[str, str], where: str) -> None:
    """Raises InvalidArgumentError if a column has another type in the files than in ``types``."""
    for name, stated in types.items():
        found = dataset.schema.field(name).type
        if found != pa.type_for_alias(stated):
            raise InvalidArgumentError(
                f"--types {name}={stated}: {where} holds it as {found}; types can be stated only "
                "for CSV and JSON files; rewrite files of other kinds"
            )


@contextlib.contextmanager
def replacing_remedy(remedy: str) -> Iterator[None]:
    """Puts ``remedy`` in place of an argument for programs that an error of files advises.

    The error becomes a DataError; other errors stay as they are.
    """
    try:
        yield
    except (SchemaError, SourceError) as error:
        message = _TYPES_OF_PROGRAMS.sub(f"; {remedy}" if remedy else "", str(error))
        message = _ROWS_OF_PROGRAMS.sub("; correct or remove that row", message)
        message = _COLUMNS_OF_PROGRAMS.sub("; rewrite that file, or leave it out", message)
        if message == str(error):
            raise
        raise DataError(message) from error


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raises errors about the rows as DataError, instead of as failures of a user's function."""
    try:
        yield
    except UserFunctionError as error:
        # A data worker sends its error as text; the last line is the exception that was raised.
        raised = error.user_traceback.strip().rpartition("\n")[2]
        for kind in (DataError, InvalidArgumentError):
            message = raised.removeprefix(f"{kind.__module__}.{kind.__name__}: ")
            if message != raised:
                raise DataError(f"{error.source}: {message}") from error
        raise


def check_output(output: str | os.PathLike[str], pattern: str) -> None:
    """Raises an error if ``output`` cannot be written, or is one of the files that are read."""
    folder = os.path.dirname(os.fspath(output)) or "."
    if not os.path.isdir(folder):
        raise NotFoundError(f"--output {os.fspath(output)}: there is no folder {folder!r}, make it")
    if os.path.isdir(output):
        raise InvalidArgumentError(f"--output {os.fspath(output)} is a folder: name a file in it")
    check_writable("--output", Path(folder))
    if (
        "://" not in pattern
        and os.path.exists(output)
        and any(os.path.samefile(output, path) for path in _paths(pattern) if os.path.exists(path))
    ):
        raise InvalidArgumentError(
            f"--output {os.fspath(output)} is one of the files of --data, and would take its "
            "place: name another file"
        )


def _paths(pattern: str) -> list[str]:
    if "://" in pattern and _kind(pattern):
        return [pattern]
    if "://" in pattern or os.path.isdir(pattern):
        listed = Dataset.list_files(pattern).to_table()["path"].to_pylist()
        found = [path for path in listed if _kind(path)]
    else:
        found = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
    if not found:
        raise NotFoundError(
            f"no file matches {pattern!r} in {os.getcwd()}; put globs in quotes, and check the path"
        )
    return found


def _kind(path: str) -> str:
    """Returns the kind of a file by its ending; "" for other endings."""
    name = os.path.basename(path).lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return _KINDS.get(os.path.splitext(name)[1], "")


def _typed(read: Callable[..., Dataset], types: Mapping[str, str]) -> Dataset:
    dataset = read()
    known = {name: type_ for name, type_ in types.items() if type_ not in _NOT_IN_TEXT}
    if not known.keys() & set(dataset.schema.names):
        return dataset
    fields = [
        field.with_type(pa.type_for_alias(known[field.name])) if field.name in known else field
        for field in dataset.schema
    ]
    return read(schema=pa.schema(fields))
