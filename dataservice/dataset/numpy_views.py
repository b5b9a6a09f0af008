"""Arrow's columns as NumPy arrays and as Python's values, without copies where the types allow it.

Responsible for the form that users' functions and programs get, and for the remedy where NumPy has
none. Knows nothing of plans or streams, nor of the way back. Invariant: an array has one entry per
row; what would not be exact is an error that names the column.
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
# Metadata of a field whose lists are all equally long within a batch.
PADDED: Final = {b"dataservice.padded": b"1"}


# Makes the NumPy form of a column; its name appears in errors.
_View: TypeAlias = Callable[[pa.Array, str], np.ndarray]


class NumpyViews:
    """The batches of one stream as arrays, one per column.

    Numbers without nulls are read-only views of Arrow's memory. Strings, binary and nested values
    become object arrays (a null is None); fixed-size lists and padded lists become 2-D; nulls in
    float columns become NaN. SchemaError for nulls in any other column; where all is `for_function`
    of a user, which need not use that column, an UntouchedColumn.
    How a column is read is decided once for all batches of a schema; `extended` names the columns
    of extension types, `padded` those of padded lists.
    """

    def __init__(self, *, for_function: bool = False) -> None:
        self._for_function = for_function
        self._schema: pa.Schema | None = None
        self._views: list[tuple[str, _View]] = []
        self.extended: frozenset[str] = frozenset()
        self.padded: frozenset[str] = frozenset()

    def of(self, batch: pa.RecordBatch) -> Columns:
        """The columns of a batch by name."""
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
    """One array per column of a single batch; see `NumpyViews`."""
    return NumpyViews().of(batch)


def to_function(batch: pa.RecordBatch) -> Columns:
    """What a user's function gets of a single batch."""
    return NumpyViews(for_function=True).of(batch)


def _or_untouched(view: _View, column: pa.Array, name: str) -> Any:
    try:
        return view(column, name)
    except SchemaError as error:
        return UntouchedColumn(column, str(error))


def is_padded(field: pa.Field) -> bool:
    """Whether the lists of a column are equally long within each batch."""
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
    """NumPy form of one column; see `to_numpy`. `name` appears in errors."""
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
            f"column {name!r} of type {kind} has no form in NumPy ({error}); leave it out with "
            'select(), or use map(..., format="arrow")'
        ) from error
    except pa.ArrowException as error:
        raise _no_form(array, name, error) from error
    return values


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """One dict per row. SchemaError for a value that Python has no form for."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except (ValueError, OverflowError) as error:
                raise _no_form(column, name, error) from error
        raise


def _no_form(array: pa.Array, name: str, error: Exception) -> SchemaError:
    return SchemaError(
        f"column {name!r} of type {array.type} has a value that is no text in UTF-8, or beyond "
        f"what Python can hold ({error}); write the files anew, leave it out with select(), or "
        'use map(..., format="arrow")'
    )


def _check_exact(array: pa.Array, name: str) -> None:
    """SchemaError where nested values hold both nulls, for which Arrow makes floats of integers,
    in structs too, and larger integers than these can tell apart."""
    if pa.types.is_nested(array.type) and not pa.types.is_union(array.type):
        for child in children_of(array):
            _check_exact(child, name)
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64 or not array.null_count:
        return
    from pyarrow import compute  # here, for few tables have such lists

    bounds = compute.min_max(array).as_py()
    if max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) > _EXACT_IN_FLOATS:
        raise SchemaError(
            f"the nested values of column {name!r} hold nulls and integers above 2^53, which NumPy "
            "cannot hold together: with nulls they become floats; read Arrow instead, as in "
            'map(..., format="arrow")'
        )


def _extension_to_numpy(array: pa.Array, name: str) -> np.ndarray:
    """As what it is stored as; of a tensor per row, with the dimensions of the tensors."""
    kind, values = array.type, array_to_numpy(array.storage, name)
    if not isinstance(kind, pa.FixedShapeTensorType):
        return values
    in_order = list(kind.permutation or ()) in ([], list(range(len(kind.shape))))
    return values.reshape((len(array), *kind.shape)) if in_order else values


def _is_extension(kind: pa.DataType | None) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _is_view(kind: pa.DataType) -> bool:
    """Whether NumPy has it in memory as Arrow does; dates and times of day are wider there."""
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
