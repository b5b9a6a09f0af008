"""A user's files as a dataset: Parquet or CSV by their names.

Knows nothing of what the columns mean. Invariant: whatever is wrong with the files raises an error
that names the file or pattern and the remedy.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence

import pyarrow as pa

from dataservice import Dataset
from pstrain.errors import DataError, InvalidArgumentError, NotFoundError

_PARQUET = (".parquet", ".pq", ".parq")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")


def open_files(pattern: str, types: Mapping[str, str] | None = None) -> Dataset:
    """The rows of a file, a folder, a glob or a URL of either.

    ``types``: Arrow types that CSV columns must have, where they are in the files; the others are
    found out from the first rows. NotFoundError where nothing matches, InvalidArgumentError for
    files that are neither Parquet nor CSV, DataError where there is not one row.
    """
    paths = _paths(pattern)
    kinds = sorted({_kind(path) for path in paths})
    if len(kinds) > 1 or not kinds[0]:
        raise InvalidArgumentError(
            f"{pattern!r} must match files of one kind, {', '.join(_PARQUET)} or "
            f"{', '.join(_SEPARATORS)}; it matches {', '.join(sorted(paths)[:3])}"
        )
    if kinds[0] in _PARQUET:
        dataset = Dataset.from_parquet(paths)
    else:
        dataset = _csv(paths, _SEPARATORS[kinds[0]], types or {})
    if dataset.cardinality() == 0:
        raise DataError(f"{pattern!r} holds no rows")
    return dataset


def check_columns(dataset: Dataset, columns: Sequence[str], where: str) -> None:
    """InvalidArgumentError naming the columns that ``dataset`` lacks and those it has."""
    present = dataset.schema.names
    known = set(present)
    missing = [name for name in columns if name not in known]
    if missing:
        raise InvalidArgumentError(
            f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(present)}"
        )


def check_output(output: str | os.PathLike[str], pattern: str) -> None:
    """InvalidArgumentError where a file that is to be written is one of those that are read."""
    if os.path.exists(output) and any(
        os.path.samefile(output, path) for path in _paths(pattern) if os.path.exists(path)
    ):
        raise InvalidArgumentError(
            f"--output {os.fspath(output)} is one of the files of --data, and would take its "
            "place: name another file"
        )


def _paths(pattern: str) -> list[str]:
    if "://" in pattern:
        return [pattern]
    if os.path.isdir(pattern):
        found = sorted(os.path.join(pattern, name) for name in os.listdir(pattern))
        found = [path for path in found if _kind(path)]
    else:
        found = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
    if not found:
        raise NotFoundError(
            f"no file matches {pattern!r} in {os.getcwd()}; put globs in quotes, and check the path"
        )
    return found


def _kind(path: str) -> str:
    """The ending that says what a file is; "parquet" endings are one kind; "" for others."""
    name = os.path.basename(path).lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    ending = os.path.splitext(name)[1]
    if ending in _PARQUET:
        return _PARQUET[0]
    return ending if ending in _SEPARATORS else ""


def _csv(paths: Sequence[str], delimiter: str, types: Mapping[str, str]) -> Dataset:
    dataset = Dataset.from_csv(paths, delimiter=delimiter)
    if not types.keys() & set(dataset.schema.names):
        return dataset
    fields = [
        field.with_type(pa.type_for_alias(types[field.name])) if field.name in types else field
        for field in dataset.schema
    ]
    return Dataset.from_csv(paths, pa.schema(fields), delimiter=delimiter)
