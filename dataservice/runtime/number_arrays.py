"""Plain numbers between NumPy and Arrow, without what Arrow imports for everything else.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas wherever it is installed, which takes as
long as all else that a server imports, and give the GIL away, for which a thread then has to wait
for each column. Knows nothing of columns and schemas. Invariant: what comes
out is what Arrow itself would have made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["from_numbers", "scalar_of", "to_numbers", "view_of"]


def from_numbers(values: np.ndarray) -> pa.Array:
    """As `pa.array`, of the same memory."""
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
    """As `Array.to_numpy`: a view that is read-only, of others than plain numbers a copy."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or array.null_count:
        values: Any = array.to_numpy(zero_copy_only=False)
        return values
    dtype = np.dtype(kind.to_pandas_dtype())
    return view_of(array, dtype) if len(array) else np.empty(0, dtype)


def view_of(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray:
    """The plain numbers of an array that has some, and no nulls; read-only. `dtype` is theirs."""
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    values.setflags(write=False)
    return values


def scalar_of(number: float, kind: pa.DataType) -> pa.Scalar:
    """As `pa.scalar`, of a type of plain numbers."""
    return from_numbers(np.array([number], kind.to_pandas_dtype()))[0]


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.isnative and dtype.itemsize <= 8
