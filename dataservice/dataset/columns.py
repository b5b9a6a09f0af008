"""The columns of record batches: cast to a schema, joined, measured, checked, made up.

Knows nothing of plans or streams, nor of forms other than Arrow's (`numpy_views`, `arrow_arrays`).
Invariant: a result has the schema that was asked for; otherwise an error names the column.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from dataservice.errors import MissingColumnError, SchemaError

_ONES: Final = (1, True, "1", b"1")


def conform(batch: pa.RecordBatch, schema: pa.Schema, *, what: str) -> pa.RecordBatch:
    """Returns `batch` with the columns of `schema`, in its order, each safely cast to its type.

    Raises SchemaError, naming `what` and the column, if a column is missing or not expected, or if
    a cast would lose information.
    """
    if batch.schema.equals(schema):
        return batch
    check_names(batch.schema.names, schema.names, what=what)
    arrays = [_cast(batch.column(field.name), field, what) for field in schema]
    # Field metadata comes from the batch, not the schema: a column that is padded in other batches
    # need not be padded in this one.
    fields = [field.with_metadata(batch.schema.field(field.name).metadata) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, schema.metadata))


def check_names(got: Sequence[str], expected: Sequence[str], *, what: str) -> None:
    """Raises SchemaError unless both hold the same names, in any order."""
    given, wanted = set(got), set(expected)
    missing = [name for name in expected if name not in given]
    extra = [name for name in got if name not in wanted]
    if missing or extra:
        raise SchemaError(
            f"{what} have the columns {list(got)}, expected {list(expected)}"
            + (f"; missing: {missing}" if missing else "")
            + (f"; not expected: {extra}" if extra else "")
        )


def _cast(array: pa.Array, field: pa.Field, what: str) -> pa.Array:
    if array.type.equals(field.type):
        return array
    try:
        if isinstance(field.type, pa.FixedShapeTensorType):
            array = _as_tensors(array, field.type)
        return array.cast(field.type, safe=True)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{what}: column {field.name!r} is of type {array.type}, expected {field.type}, "
            f"and its values do not convert ({error}); convert it in the function, "
            "or state the types with schema="
        ) from error


def _as_tensors(array: pa.Array, kind: pa.FixedShapeTensorType) -> pa.Array:
    """Converts lists of lists of the tensors' shape to tensors, which Arrow's cast cannot do.

    Other arrays are returned unchanged.
    """
    values, shape = array, list(kind.shape)
    if list(kind.permutation or ()) not in ([], list(range(len(shape)))):
        return array
    for size in shape:
        is_list = pa.types.is_fixed_size_list(values.type) and values.type.list_size == size
        if not is_list or values.null_count:
            return array
        values = values.flatten()
    values = values.cast(kind.value_type)
    storage = pa.FixedSizeListArray.from_arrays(values, type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def concat_batches(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins one or more pieces to one batch; a single piece is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*(piece.columns for piece in pieces), strict=True)
    arrays = [pa.concat_arrays(column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pieces[0].schema)


def join_batches(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins the pieces and empties the list; only one column at a time is in memory twice."""
    schema = pieces[0].schema
    if len(pieces) == 1:
        return pieces.pop()
    columns = [[piece.column(index) for piece in pieces] for index in range(len(schema))]
    pieces.clear()
    arrays = []
    while columns:
        arrays.append(pa.concat_arrays(columns.pop()))
    return pa.RecordBatch.from_arrays(arrays[::-1], schema=schema)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch of that schema without rows; `RecordBatch.from_pylist` knows no unions."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def encoded_bytes(batch: pa.RecordBatch) -> int:
    """Returns the bytes of a batch when it is sent; ten times as fast as `nbytes`."""
    size: int = pa.ipc.get_record_batch_size(batch)
    return size


def require_columns(wanted: Sequence[str], available: Sequence[str], *, what: str) -> None:
    """Raises MissingColumnError for the first wanted column that is not available.

    The error lists the available columns.
    """
    known = set(available)
    for name in wanted:
        if name not in known:
            raise MissingColumnError(
                f"{what}: there is no column {name!r}; the columns are {list(available)}"
            )


def require_distinct(names: Sequence[str], *, what: str) -> None:
    """Raises SchemaError for a name that occurs twice: a dict by name would lose a column."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SchemaError(f"{what} has several columns named {twice}; rename them")


def made_up_row(schema: pa.Schema) -> pa.RecordBatch:
    """Returns one row of these columns, on which functions of rows are tried if there is no other.

    Each value is a one, as a number, text or time, since functions may divide by it; null in
    columns whose type no plain value fits.
    """
    arrays = [_made_up(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _made_up(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _made_up(kind.storage_type))
    try:
        return pa.array([_one(kind)], kind)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.nulls(1, kind)


def _one(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: _one(field.type) for field in kind.fields}
    if types.is_map(kind):
        return [(_one(kind.key_type), _one(kind.item_type))]
    if types.is_fixed_size_list(kind):
        return [_one(kind.value_type)] * kind.list_size
    if types.is_fixed_size_binary(kind):
        return b"1" * kind.byte_width
    if types.is_nested(kind) and not types.is_union(kind):
        return [_one(kind.value_type)]
    for value in _ONES:
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
            return pa.array([value], kind)[0].as_py()
    return None
