"""Columns whose values are in the names of folders, as in `day=2024-01-01/part-0.parquet`.

Responsible for their names, types and values, from paths alone: the layout that Hive, Spark and
`pyarrow.dataset.write_dataset` write. Accesses no file and knows no format. Invariant: which
columns there are depends on all paths, the values of a file on its own path and these columns.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.paths import is_local
from dataservice.errors import SchemaError, SourceError

HIVE: Final = "hive"
PARTITIONINGS: Final = (HIVE, None)
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"-?[0-9]+")
# User and password in a URL.
_LOGIN: Final = re.compile(r"(?<=://)[^/]*@")
_HTTP: Final = ("http://", "https://")


class FolderColumns:
    """The columns that the folders of all files have together, gathered file by file."""

    def __init__(self) -> None:
        # Whether all values are integers, by name; None while all are null.
        self._are_integers: dict[str, bool | None] = {}
        self._noted: set[tuple[str, str]] = set()

    def noting(self, found: Iterable[tuple[str, InputFile]]) -> Iterator[InputFile]:
        """Yields the files of pairs of a path that was given and a file found there."""
        for given, file in found:
            if "=" in file.path:
                self._note(_counted_from(given, file.path), _folder(file.path))
            yield file

    def schema(self) -> pa.Schema:
        """Returns the columns noted so far: int64 if all values are integers, else string."""
        return pa.schema(
            [(name, pa.int64() if of else pa.string()) for name, of in self._are_integers.items()]
        )

    def _note(self, root: str, folder: str) -> None:
        if (root, folder) in self._noted:
            return
        self._noted.add((root, folder))
        # Folders above the one that was named, and that one, are not of its contents.
        for name, text in _pairs(folder)[len(_pairs(root)) :]:
            before = self._are_integers.setdefault(name, None)
            if text is not None:
                self._are_integers[name] = before is not False and _is_integer(text)


def folder_row(path: str, columns: pa.Schema) -> pa.RecordBatch:
    """Returns one row: the values of `columns` in the names of the folders of a file.

    Of several folders with one name, the innermost counts. SchemaError if there is none.
    """
    texts = dict(_pairs(_folder(path)))
    values = [_value(path, texts, column) for column in columns]
    arrays = [pa.array([value], kind) for value, kind in zip(values, columns.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _value(path: str, texts: dict[str, str | None], column: pa.Field) -> int | str | None:
    if column.name not in texts:
        raise SchemaError(
            f"the files differ: {path!r} lies in no folder {column.name}=..., as others do; move "
            "it into one, or read all files without the names of folders by partitioning=None"
        )
    text = texts[column.name]
    if text is None or not pa.types.is_integer(column.type):
        return text
    if not _is_integer(text):
        raise SchemaError(
            f"the files differ: {path!r} has {column.name} {text!r}, and it was an integer in all "
            "files when they were listed; start a new iteration"
        )
    return int(text)


def _counted_from(given: str, found: str) -> str:
    """Returns the folder below which names of folders count: the given one, or "" for all.

    All count for a file that was named by itself or by a pattern, as if it had been listed.
    """
    if is_local(given):
        return given if found.startswith(given.rstrip("/") + "/") else ""
    is_itself = given.rpartition("/")[2] == found.rpartition("/")[2]
    return "" if is_itself or glob.has_magic(given) else given


def _folder(path: str) -> str:
    if path.startswith(_HTTP):
        path = path.partition("?")[0]  # the query may hold a signature
    return path.rpartition("/")[0]


def _pairs(folder: str) -> list[tuple[str, str | None]]:
    """Returns the names and values in a path of folders, from the outermost on; None for null."""
    parts = (part.partition("=") for part in _LOGIN.sub("", folder).split("/"))
    return [(_decoded(name), _text(value)) for name, equals, value in parts if name and equals]


def _text(value: str) -> str | None:
    return None if value == _NULL else _decoded(value)


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"the name of a folder, {text!r}, does not decode to UTF-8 ({error}); rename it, or "
            "read without the names of folders by partitioning=None"
        ) from error


def _is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63
