"""The reference: the file whose columns and types all others must have, and types that it lacks.

Knows schemas, not how a format stores them. Invariant: for the same files, the reference is the
same on every machine; finding it reads the metadata, or the first block, of a bounded number of
files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa

from dataservice.dataset.sources.files import InputFile
from dataservice.errors import SchemaError, SourceError

# Most files that are read to find the types of columns without values in the first file.
_MAX_LOOKED_AT: Final = 256
_THREADS: Final = 16


class Reference(NamedTuple):
    """The first file and the whole schema.

    `type_sources` has, for each column whose type another file has told, the path of that file.
    `in_folders` are those columns whose values are in the names of the files' folders.
    """

    path: str
    schema: pa.Schema
    type_sources: Mapping[str, str] = MappingProxyType({})
    in_folders: pa.Schema = pa.schema([])

    def path_of_type(self, column: str) -> str:
        """Returns the path of the file that told the type of `column`."""
        return self.type_sources.get(column, self.path)

    def with_folders(self, columns: pa.Schema) -> Reference:
        """Returns a reference that also has those of `columns` that the files do not have."""
        new = [column for column in columns if column.name not in self.schema.names]
        return self._replace(schema=pa.schema([*self.schema, *new]), in_folders=pa.schema(new))


def fits(found: pa.DataType, expected: pa.DataType) -> bool:
    """True if `found` is the type `expected`, or differs only by null for it or parts of it.

    A writer uses null where no row has a value.
    """
    if found.equals(expected) or pa.types.is_null(found):
        return True
    children, others = _children(found), _children(expected)
    if not children or found.id != expected.id or len(children) != len(others):
        return False
    if getattr(found, "list_size", 0) != getattr(expected, "list_size", 0):
        return False
    # Writers use different names for the values of lists.
    named_alike = [f.name for f in children] == [f.name for f in others]
    return (named_alike or not pa.types.is_struct(found)) and all(
        fits(mine.type, other.type) for mine, other in zip(children, others, strict=True)
    )


def lacks_type(kind: pa.DataType) -> bool:
    """True if the type is null, or has a part of type null."""
    return pa.types.is_null(kind) or any(lacks_type(field.type) for field in _children(kind))


def _children(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of a struct or the value field of a list; none for other types."""
    if pa.types.is_struct(kind):
        return list(kind.fields)
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return [kind.value_field] if is_list else []


def completed(
    first: Reference,
    wanted: Collection[str] | None,
    others: Iterable[InputFile],
    read: Callable[[InputFile], Reference],
    on_error: str,
) -> Reference:
    """Returns `first`, with types for those of its columns `wanted` (None: all) that lack one.

    Each type comes from the first of `others` that has one. A file that cannot be read is an error,
    unless `on_error` is "skip".
    """
    path, schema = first.path, first.schema
    untyped = {
        field.name
        for field in schema
        if (wanted is None or field.name in wanted) and lacks_type(field.type)
    }
    type_sources: dict[str, str] = {}
    for other in _read_ahead(others, read, on_error) if untyped else ():
        for name in sorted(untyped):
            kind = _type_in(other.schema, name)
            index = schema.get_field_index(name)
            if kind is None or lacks_type(kind) or not fits(schema.field(index).type, kind):
                continue
            schema = schema.set(index, pa.field(name, kind))
            type_sources[name] = other.path
            untyped.remove(name)
        if not untyped:
            break
    return Reference(path, schema, type_sources)


def _type_in(schema: pa.Schema, name: str) -> pa.DataType | None:
    index = schema.get_field_index(name)
    return None if index < 0 else schema.field(index).type


def _read_ahead(
    files: Iterable[InputFile], read: Callable[[InputFile], Reference], on_error: str
) -> Iterator[Reference]:
    """Yields the results of `read` for the first `_MAX_LOOKED_AT` files, in order; uses threads."""

    def try_read(file: InputFile) -> Reference | None:
        try:
            return read(file)
        except (SourceError, SchemaError):
            if on_error != "skip":
                raise
            return None

    bounded = itertools.islice(files, _MAX_LOOKED_AT)
    with ThreadPoolExecutor(_THREADS) as pool:
        while some := list(itertools.islice(bounded, _THREADS)):
            yield from filter(None, pool.map(try_read, some))
