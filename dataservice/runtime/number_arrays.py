"""Converts plain numbers between NumPy and Arrow, without importing pandas.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas if it is installed, which takes as long
as all other imports of a server. They also release the GIL, so that a thread then has to wait for
the GIL once per column. Knows no columns and no schemas. Invariant: the results are those that
Arrow itself would return.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def from_numbers(values: np.ndarray) -> pa.Array:
    """Does what `pa.array` does, in any byte order; plain numbers share memory with the result."""
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if type(values) is not np.ndarray or values.ndim != 1:
        return pa.array(values)
    size = len(values)
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), size, [None, pa.py_buffer(bits)], 0)
    layout = values.flags
    if not (_is_number(values.dtype) and layout.c_contiguous and layout.aligned):
        return pa.array(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, size, [None, pa.py_buffer(values)], 0)


def to_numbers(array: pa.Array) -> np.ndarray:
    """Does what `Array.to_numpy` does: a read-only view of plain numbers, of others a copy."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or array.null_count:
        values: Any = array.to_numpy(zero_copy_only=False)
        return values
    dtype = np.dtype(kind.to_pandas_dtype())
    return view_of(array, dtype) if len(array) else np.empty(0, dtype)


def to_axes(values: Any) -> np.ndarray:
    """Does what `np.asarray` does, but makes an axis of the lists of a fixed-size list column."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    is_column = isinstance(values, pa.Array) and not values.null_count
    if not is_column or not pa.types.is_fixed_size_list(values.type):
        return np.asarray(values)
    inner = to_axes(values.flatten())
    return inner.reshape((len(values), values.type.list_size, *inner.shape[1:]))


def column_axes(value: Any) -> Any:
    """Returns a column of Arrow as `to_axes` does, and any other value as it is."""
    return to_axes(value) if isinstance(value, pa.Array | pa.ChunkedArray) else value


def view_of(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray:
    """Returns a read-only view of a non-empty array of plain numbers without nulls.

    `dtype` must be the type of these numbers.
    """
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    values.setflags(write=False)
    return values


def scalar_of(number: float, kind: pa.DataType) -> pa.Scalar:
    """Does what `pa.scalar` does, for a type of plain numbers."""
    return from_numbers(np.array([number], kind.to_pandas_dtype()))[0]


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.isnative and dtype.itemsize <= 8
