"""Converts Arrow columns to NumPy arrays and Python values, without copies if the types allow it.

Responsible for the form in which users' functions and programs get columns, and for the remedy if
NumPy has no form for a column. Knows nothing of plans or streams, nor of the conversion to Arrow
(`arrow_arrays`). Invariant: an array has one entry per row; a conversion that would not be exact is
an error that names the column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.nested_arrays import children_of
from dataservice.dataset.plain_types import plain_array, plain_type
from dataservice.dataset.untouched import UntouchedColumn
from dataservice.errors import SchemaError
from dataservice.runtime.number_arrays import view_of

Columns: TypeAlias = dict[str, np.ndarray]

_EXACT_IN_FLOATS: Final = 2**53
# The metadata of a field whose lists are all equally long within a batch.
PADDED: Final = {b"dataservice.padded": b"1"}


# Converts a column to NumPy; the second argument is its name, for errors.
_View: TypeAlias = Callable[[pa.Array, str], np.ndarray]


class NumpyViews:
    """Converts the batches of one stream to arrays, one per column.

    Numbers without nulls become read-only views of Arrow's memory. Strings, binary and nested
    values become object arrays (a null is None); fixed-size lists and padded lists become 2-D;
    nulls in float columns become NaN. Nulls in any other column raise SchemaError, or with
    `for_function` give an UntouchedColumn, since a user's function need not use that column.
    The conversion of a column is chosen once for all batches of a schema; `extended` names the
    columns of extension types, `padded` those of padded lists.
    """

    def __init__(self, *, for_function: bool = False) -> None:
        self._for_function = for_function
        self._schema: pa.Schema | None = None
        self._views: list[tuple[str, _View]] = []
        self.extended: frozenset[str] = frozenset()
        self.padded: frozenset[str] = frozenset()

    def of(self, batch: pa.RecordBatch) -> Columns:
        """Returns the columns of a batch by name."""
        schema = batch.schema
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            self._views = [(field.name, _view_of(field)) for field in schema]
            self.extended = frozenset(field.name for field in schema if _is_extension(field.type))
            self.padded = frozenset(field.name for field in schema if is_padded(field))
            self._schema = schema
        if self._for_function:
            return {
                name: _or_untouched(view, column, name)
                for (name, view), column in zip(self._views, batch.columns, strict=True)
            }
        return {
            name: view(column, name)
            for (name, view), column in zip(self._views, batch.columns, strict=True)
        }


def to_numpy(batch: pa.RecordBatch) -> Columns:
    """Returns one array per column of a single batch; see `NumpyViews`."""
    return NumpyViews().of(batch)


def to_function(batch: pa.RecordBatch) -> Columns:
    """Returns what a user's function gets for a single batch; see `NumpyViews`."""
    return NumpyViews(for_function=True).of(batch)


def _or_untouched(view: _View, column: pa.Array, name: str) -> Any:
    try:
        return view(column, name)
    except SchemaError as error:
        return UntouchedColumn(column, str(error))


def is_padded(field: pa.Field) -> bool:
    """True if the lists of a column are marked as equally long within each batch."""
    return bool(field.metadata) and PADDED.items() <= field.metadata.items()


def _view_of(field: pa.Field) -> _View:
    if is_padded(field):
        return _padded_to_numpy
    if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
        return array_to_numpy
    dtype = np.dtype(field.type.to_pandas_dtype())

    def view(array: pa.Array, name: str) -> np.ndarray:
        if array.null_count or not len(array):
            return array_to_numpy(array, name)
        return view_of(array, dtype)

    return view


def _padded_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    flat = array_to_numpy(array.flatten(), name)
    return flat.reshape((len(array), len(flat) // max(1, len(array)), *flat.shape[1:]))


def array_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    """Converts one column to NumPy; see `NumpyViews`. `name` appears in errors."""
    kind = array.type
    if _is_extension(kind):
        return _extension_to_numpy(array, name)
    if not plain_type(kind).equals(kind):
        return array_to_numpy(plain_array(array, plain_type(kind)), name)
    if array.null_count and not _holds_nulls(kind):
        raise SchemaError(
            f"column {name!r} of type {kind} has {array.null_count} nulls, which a NumPy array of "
            f'that type cannot hold; {_without_nulls(kind, name)}, or map(..., format="arrow")'
        )
    if pa.types.is_fixed_size_list(kind):
        flat = array.flatten()
        is_number = pa.types.is_integer(flat.type) or pa.types.is_boolean(flat.type)
        if flat.null_count and is_number:
            raise SchemaError(
                f"the lists of column {name!r} of type {kind} hold {flat.null_count} nulls, which "
                f"a NumPy array of {flat.type} cannot hold; cast it before, for example by "
                'map(..., format="arrow") to lists of float64, where nulls become NaN'
            )
        inner = array_to_numpy(flat, name)
        return inner.reshape((len(array), kind.list_size, *inner.shape[1:]))
    if pa.types.is_nested(kind):
        _check_exact(array, name)
    try:
        values: np.ndarray = array.to_numpy(zero_copy_only=_is_view(kind) and not array.null_count)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"column {name!r} of type {kind} cannot be represented in NumPy ({error}); leave "
            'it out with select(), or use map(..., format="arrow")'
        ) from error
    except pa.ArrowException as error:
        raise _no_form(array, name, error) from error
    return values


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns one dict per row; raises SchemaError for a value that Python cannot hold."""
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except (ValueError, OverflowError) as error:
                raise _no_form(column, name, error) from error
        raise


def _no_form(array: pa.Array, name: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"column {name!r} of type {array.type} has a value that is not text in UTF-8, or beyond "
        f"what Python can hold ({error}); write the files anew, leave it out with select(), or "
        'use map(..., format="arrow")'
    )


def _check_exact(array: pa.Array, name: str) -> None:
    """Raises SchemaError if nested integers would lose digits.

    If there are nulls among them, also in structs, Arrow converts the integers to floats, which
    cannot tell integers above 2^53 apart.
    """
    if pa.types.is_nested(array.type) and not pa.types.is_union(array.type):
        for child in children_of(array):
            _check_exact(child, name)
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64 or not array.null_count:
        return
    from pyarrow import compute  # imported here, since few tables have such lists

    bounds = compute.min_max(array).as_py()
    if max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) > _EXACT_IN_FLOATS:
        raise SchemaError(
            f"the nested values of column {name!r} hold nulls and integers above 2^53, which NumPy "
            "cannot hold together: with nulls they become floats; read Arrow instead, as in "
            'map(..., format="arrow")'
        )


def _extension_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    """Converts the storage of an extension column; tensors keep their dimensions."""
    kind, values = array.type, array_to_numpy(array.storage, name)
    if not isinstance(kind, pa.FixedShapeTensorType):
        return values
    in_order = list(kind.permutation or ()) in ([], list(range(len(kind.shape))))
    return values.reshape((len(array), *kind.shape)) if in_order else values


def _is_extension(kind: pa.DataType | None) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _is_view(kind: pa.DataType) -> bool:
    """True if NumPy and Arrow store the type alike; NumPy's dates and times of day are wider."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind)
    return is_number or types.is_timestamp(kind) or types.is_duration(kind)


def _without_nulls(kind: pa.DataType, name: str) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"leave those rows out first, with filter(~col({name!r}).is_null())"
    value = False if pa.types.is_boolean(kind) else 0
    return (
        "replace them first, for example with "
        f"with_column({name!r}, col({name!r}).fill_null({value}))"
    )


def _holds_nulls(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_fixed_size_list(kind)
    )
