"""In which dtypes the values and ids of a training step travel: their own, or narrower ones.

Rows and whole variables that a step pulls and gradients that it pushes are rounded to bfloat16
where they are written into a message, and are float32 again where they are taken out of it; ids
that fit are int32 meanwhile. All else travels as it is. Invariant: a request names its dtypes where
they are narrower, and its reply has the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dataservice.runtime.arguments import check_choice
from pstrain import buffers
from pstrain.bfloat16 import STORED_AS, round_into, widened
from pstrain.paramserver.messages import Array, LateBody

FLOAT32: Final = "float32"
BFLOAT16: Final = "bfloat16"
INT64: Final = "int64"
INT32: Final = "int32"
_INT32_ROWS: Final = 1 << 31
_WIDEST: Final = (FLOAT32, INT64)


def check_transport_dtype(value: Any) -> str:
    """``value``; InvalidArgumentError, naming the choices, where it is none of them."""
    check_choice("transport_dtype", value, (FLOAT32, BFLOAT16))
    return str(value)


def ids_dtype(rows: int, transport_dtype: str) -> str:
    """Of ids of variables that have at most so many rows."""
    return INT32 if transport_dtype == BFLOAT16 and rows <= _INT32_ROWS else INT64


def named(transport_dtype: str, ids: str = INT64) -> dict[str, str]:
    """What a request says of the dtypes of values and ids."""
    values = {} if transport_dtype == FLOAT32 else {"transport_dtype": transport_dtype}
    return values if ids == INT64 else {**values, "ids_dtype": ids}


def named_in(request: Mapping[str, Any]) -> tuple[str, str]:
    """What a request, whose header was checked, says of the dtypes of values and ids."""
    return request.get("transport_dtype", FLOAT32), request.get("ids_dtype", INT64)


def wire_dtype(dtype: str, transport_dtype: str) -> str:
    """Of an array in a body, of values of a ``dtype``."""
    return STORED_AS if transport_dtype == BFLOAT16 and dtype == FLOAT32 else dtype


def body_of(arrays: Sequence[Array], transport_dtype: str, ids: str = INT64) -> LateBody | None:
    """As :meth:`LateBody.of`, of ids and float32 rows, which are converted as they are written."""
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
    """What was received; rounded rows as float32, and as read-only as all that is received."""
    return buffers.read_only(widened(array)) if array.dtype == np.uint16 else array


def widest(array: Array) -> Array:
    """The same of ids, which come out as int64, and of gradients."""
    if array.dtype == np.int32:
        return buffers.read_only(array.astype(np.int64))
    return float32_of(array)


def all_widest(arrays: list[Array], dtypes: tuple[str, str]) -> list[Array]:
    """The same of all arrays of a request that names these ``dtypes``."""
    return arrays if dtypes == _WIDEST else [widest(array) for array in arrays]
