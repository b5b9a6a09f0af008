"""Converts NumPy arrays, and what users return in their place, to Arrow; numbers without copies.

Knows nothing of plans or streams, nor of the conversion to NumPy (`numpy_views`). Invariant: a
column made here is not encoded as a dictionary, runs or views: rows travel without these encodings,
and Arrow cannot take rows of views.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import conform
from dataservice.dataset.nested_arrays import fixed_size_lists
from dataservice.dataset.numpy_types import has_zeros_inside, is_masked, stored_type
from dataservice.dataset.plain_types import plain_array, plain_type
from dataservice.dataset.untouched import UntouchedColumn
from dataservice.errors import SchemaError
from dataservice.runtime.number_arrays import from_numbers

# The types of numbers that have the same form in memory in NumPy and in Arrow.
PLAIN: Final = {
    np.dtype(kind): pa.from_numpy_dtype(np.dtype(kind))
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}


def from_numpy(
    columns: Mapping[str, Any],
    schema: pa.Schema | None = None,
    *,
    what: str = "the columns",
    kinds: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> pa.RecordBatch:
    """Returns a record batch of 1-D and n-D arrays of equal length; numbers are not copied.

    Further dimensions become fixed-size lists. `kinds` gives types by column, which are used
    instead of inferred types if the values allow it. With `schema`, columns are put in its order
    and cast to its types. Raises SchemaError, naming `what`, for a column that is missing, not
    expected, or of another length.
    """
    for name in columns:
        if not isinstance(name, str):
            raise SchemaError(f"{what}: the name of a column is a string, got {name!r}")
    arrays = {name: to_arrow(values, name, kinds.get(name)) for name, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = {name: len(array) for name, array in arrays.items()}
        raise SchemaError(f"{what} have unequal lengths: {_listed(lengths)}")
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return batch if schema is None else conform(batch, schema, what=what)


def _listed(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} has {length}" for name, length in lengths.items())


def to_arrow(values: Any, name: str, kind: pa.DataType | None = None) -> pa.Array:
    """Converts a NumPy array, a sequence or an Arrow array to Arrow; SchemaError if impossible.

    The result is of type `kind` if the values allow it. Masked values become null.
    """
    if kind is None and isinstance(values, pa.Array) and pa.types.is_primitive(values.type):
        return values
    if isinstance(kind, pa.BaseExtensionType):
        extended = _to_extension(values, name, kind)
        if extended is not None:
            return extended
    if kind is not None and isinstance(values, np.ndarray) and values.ndim > 1:
        lists = _to_lists(values, name, kind)
        if lists is not None:
            return lists
    is_flat = type(values) is np.ndarray and values.ndim == 1
    if is_flat and kind is not None and kind == PLAIN.get(values.dtype):
        return from_numbers(values)
    # NaN is tried as a value first, and then as null: NumPy has nulls of integer lists as NaN.
    for nan_is_null in () if kind is None else (False, True):
        with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
            return pa.array(values, kind, from_pandas=nan_is_null)
    if isinstance(values, UntouchedColumn):
        values = values.array
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return plain_array(values, plain_type(values.type))
    # A pandas.Series keeps its nulls in its own array type; converting to NumPy would lose them.
    extended = getattr(values, "array", values)
    try:
        if isinstance(values, list | tuple):
            return _sequence_to_arrow(values, name)
        if hasattr(extended, "__arrow_array__"):
            made = pa.array(extended)
            is_text = pa.types.is_large_string(made.type)
            return plain_array(made, pa.string() if is_text else plain_type(made.type))
        return _ndarray_to_arrow(values if is_masked(values) else np.asarray(values), name)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"column {name!r} cannot become an Arrow array: {error}") from error


def of_values(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Does what `pa.array` does for one value per row, and takes n-D arrays as values too.

    These become lists in lists.
    """
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError):
        if not any(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
            raise
        return pa.array([_in_lists(value) for value in values], kind)


def _in_lists(value: Any) -> Any:
    """Returns an n-D array as lists of 1-D arrays, whose type Arrow keeps; other values as is."""
    is_nested = isinstance(value, np.ndarray) and value.ndim > 1
    return [_in_lists(part) for part in value] if is_nested else value


def _to_lists(values: np.ndarray, name: str, kind: pa.DataType) -> pa.Array | None:
    """Converts an n-D array to lists of type `kind`; None if the values are not of that type."""
    width, is_fixed = values.shape[1], pa.types.is_fixed_size_list(kind)
    is_large = pa.types.is_large_list(kind)
    if not ((is_fixed and width == kind.list_size) or is_large or pa.types.is_list(kind)):
        return None
    flat = to_arrow(values.reshape(len(values) * width, *values.shape[2:]), name, kind.value_type)
    if not flat.type.equals(kind.value_type):
        return None
    if is_fixed:
        return fixed_size_lists(flat, len(values), kind)
    offsets = pa.array(np.arange(len(values) + 1) * width, pa.int64() if is_large else pa.int32())
    lists = pa.LargeListArray if is_large else pa.ListArray
    return lists.from_arrays(offsets, flat, type=kind)


def _to_extension(values: np.ndarray, name: str, kind: pa.BaseExtensionType) -> pa.Array | None:
    """Converts the NumPy form of an extension column back; None if its storage does not fit."""
    flat = values.reshape((len(values), math.prod(values.shape[1:]))) if values.ndim > 1 else values
    storage = to_arrow(flat, name, None if values.ndim > 1 else kind.storage_type)
    with contextlib.suppress(pa.ArrowException):
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    return None


def _sequence_to_arrow(values: Sequence[Any], name: str) -> pa.Array:
    try:
        array = np.asarray(values)
    except ValueError:
        # NumPy has no arrays with rows of different lengths.
        return pa.array(values)
    if array.dtype.kind in "SU":
        # NumPy drops trailing NULs of strings of a fixed width.
        texts = np.asarray(values, dtype=object)
        array = texts if all(isinstance(text, str | bytes) for text in texts.flat) else array
    return pa.array(values) if 0 in array.shape[1:] else _ndarray_to_arrow(array, name)


def _ndarray_to_arrow(values: np.ndarray, name: str) -> pa.Array:
    if values.ndim == 0:
        raise SchemaError(
            f"column {name!r} is the single value {values.tolist()!r}; "
            "a column is an array with one value per row"
        )
    values = values.astype(stored_type(values.dtype, name), copy=False)
    if values.ndim == 1:
        return pa.array(values.tolist()) if has_zeros_inside(values) else from_numbers(values)
    if 0 in values.shape[1:]:
        raise SchemaError(f"column {name!r} has shape {values.shape}; each row must hold values")
    # np.ascontiguousarray would drop the mask.
    whole = values if is_masked(values) else np.ascontiguousarray(values)
    flat = _ndarray_to_arrow(whole.reshape(-1), name)
    for width in reversed(values.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, width)
    return flat


def apply_in_pool(
    compute: Callable[[np.ndarray], object], array: pa.Array, kind: pa.DataType
) -> pa.Array:
    """Returns an array of type `kind` whose numbers `compute` writes; null where `array` is null.

    It is allocated in Arrow's memory pool, which keeps its pages. The C library would return large
    arrays to the system at once, and every chunk would pay for fresh pages.
    """
    dtype = np.dtype(kind.to_pandas_dtype())
    buffer = pa.allocate_buffer(len(array) * dtype.itemsize)
    compute(np.frombuffer(buffer, dtype=dtype))
    nulls = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(kind, len(array), [nulls, buffer])
