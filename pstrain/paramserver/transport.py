"""In which dtype the float32 values of a training step travel: their own, or bfloat16.

Rows and whole variables that a step pulls and gradients that it pushes are rounded where they are
written into a message, and are float32 again where they are taken out of it. All else travels as it
is. Invariant: a request names its dtype unless it is float32, and its reply has the same.
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


def check_transport_dtype(value: Any) -> str:
    """``value``; InvalidArgumentError, naming the choices, where it is none of them."""
    check_choice("transport_dtype", value, (FLOAT32, BFLOAT16))
    return str(value)


def named(transport_dtype: str) -> dict[str, str]:
    """What a request says of it."""
    return {} if transport_dtype == FLOAT32 else {"transport_dtype": transport_dtype}


def named_in(request: Mapping[str, Any]) -> str:
    """What a request says; InvalidArgumentError for a dtype that there is none of."""
    return check_transport_dtype(request.get("transport_dtype", FLOAT32))


def wire_dtype(dtype: str, transport_dtype: str) -> str:
    """Of an array in a body, of values of a ``dtype``."""
    return STORED_AS if transport_dtype == BFLOAT16 and dtype == FLOAT32 else dtype


def body_of(arrays: Sequence[Array], transport_dtype: str) -> LateBody | None:
    """As :meth:`LateBody.of`, of ids and float32 rows; the rows are rounded as they are written."""
    if transport_dtype == FLOAT32 or not arrays:
        return LateBody.of(arrays)
    kinds = [wire_dtype(array.dtype.name, transport_dtype) for array in arrays]
    parts = [(kind, array.shape) for kind, array in zip(kinds, arrays, strict=True)]

    def fill(part: int, start: int, stop: int, target: Array) -> None:
        rows = arrays[part][start:stop]
        if kinds[part] == STORED_AS:
            round_into(target, rows)
        else:
            target[...] = rows

    ready = [a if a.dtype != np.float32 else None for a in arrays]
    return LateBody(parts, fill, ready)


def float32_of(array: Array) -> Array:
    """What was received; rounded rows as float32, and as read-only as all that is received."""
    return buffers.read_only(widened(array)) if array.dtype == np.uint16 else array
