"""The dtypes in which the values and ids of a training step travel: their own, or narrower ones.

With bfloat16 transport, the rows and whole variables that a step pulls and the gradients that it
pushes are rounded to bfloat16 when they are written into a message, and are widened to float32 when
they are taken out; ids that fit travel as int32. All else travels as it is. Knows nothing of shards
or steps. Invariant: a request names its dtypes if they are narrower, and its reply uses the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dataservice.runtime.arguments import check_choice
from pstrain import buffers
from pstrain.paramserver.messages import Array, LateBody
from pstrain.serialization.bfloat16 import STORED_AS, round_into, widened

FLOAT32: Final = "float32"
BFLOAT16: Final = "bfloat16"
INT64: Final = "int64"
INT32: Final = "int32"
_INT32_ROWS: Final = 1 << 31
_WIDEST: Final = (FLOAT32, INT64)
_NARROWED: Final[Mapping[str, Mapping[str, str]]] = {
    FLOAT32: {},
    BFLOAT16: {FLOAT32: STORED_AS},
}


def check_transport_dtype(value: Any) -> str:
    """Returns ``value``; raises InvalidArgumentError, naming the choices, if it is not one."""
    check_choice("transport_dtype", value, (FLOAT32, BFLOAT16))
    return str(value)


def ids_dtype(rows: int, transport_dtype: str) -> str:
    """Returns the dtype in which ids travel, for variables that have at most so many rows."""
    return INT32 if transport_dtype == BFLOAT16 and rows <= _INT32_ROWS else INT64


def dtype_fields(transport_dtype: str, ids: str = INT64) -> dict[str, str]:
    """Returns the header fields by which a request names the dtypes of values and ids."""
    values = {} if transport_dtype == FLOAT32 else {"transport_dtype": transport_dtype}
    return values if ids == INT64 else {**values, "ids_dtype": ids}


def dtypes_of(request: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the dtypes of values and ids that a request names; its header must be checked."""
    return request.get("transport_dtype", FLOAT32), request.get("ids_dtype", INT64)


def narrowed(transport_dtype: str) -> Mapping[str, str]:
    """Returns the dtypes of values that lie in a body as another dtype, with that dtype."""
    return _NARROWED[transport_dtype]


def body_of(arrays: Sequence[Array], transport_dtype: str, ids: str = INT64) -> LateBody | None:
    """Makes a body as :meth:`LateBody.of` does, converting ids and float32 rows when written."""
    if transport_dtype == FLOAT32 or not arrays:
        return LateBody.of(arrays)
    kinds = [ids if array.dtype == np.int64 else STORED_AS for array in arrays]
    parts = [(kind, array.shape) for kind, array in zip(kinds, arrays, strict=True)]

    def fill(part: int, start: int, stop: int, target: Array) -> None:
        rows = arrays[part][start:stop]
        if kinds[part] == STORED_AS:
            round_into(target, rows)
        else:
            target[...] = rows

    ready = [a if kind == INT64 else None for a, kind in zip(arrays, kinds, strict=True)]
    return LateBody(parts, fill, ready)


def float32_of(array: Array) -> Array:
    """Returns a received array, widened from bfloat16 to read-only float32 if it was rounded."""
    return buffers.read_only(widened(array)) if array.dtype == np.uint16 else array


def widest(array: Array) -> Array:
    """Returns a received array, with int32 ids widened to int64, and gradients to float32."""
    if array.dtype == np.int32:
        return buffers.read_only(array.astype(np.int64))
    return float32_of(array)


def all_widest(arrays: list[Array], dtypes: tuple[str, str]) -> list[Array]:
    """Widens all arrays of a request that names these ``dtypes``."""
    return arrays if dtypes == _WIDEST else [widest(array) for array in arrays]
