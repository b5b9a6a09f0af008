"""Types of NumPy that Arrow lacks, or reads otherwise.

Knows arrays, nothing of batches. Invariant: `stored_type` holds each value of the type it is for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dataservice.errors import SchemaError

_WIDER_UNITS: Final = {
    "M": {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"},
    "m": {"W": "s", "D": "s", "h": "s", "m": "s"},
}
_CHARACTERS: Final = {"S": np.uint8, "U": np.uint32}


def stored_type(dtype: np.dtype, name: str) -> np.dtype:
    """The type in the order of bytes of this machine, and in a unit of time that Arrow has.

    SchemaError, naming the column, for one that has no form in Arrow.
    """
    if dtype.kind in "cV":
        raise SchemaError(
            f"column {name!r} of type {dtype} has no form in Arrow; give its parts, such as "
            "array.real or array['field'], as columns of their own"
        )
    if dtype.kind in _WIDER_UNITS:
        unit, count = np.datetime_data(dtype)
        wider = _WIDER_UNITS[dtype.kind].get(unit, unit)
        if wider != unit or count != 1:
            return np.dtype(f"{dtype.kind}8[{wider}]")
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def is_masked(values: Any) -> bool:
    """Whether it is one of NumPy's masked arrays, which are loaded when they are first named."""
    return type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray)


def has_zeros_inside(values: np.ndarray) -> bool:
    """Whether texts of a 1-D array have characters behind a zero, where Arrow would end them."""
    character = _CHARACTERS.get(values.dtype.kind)
    if character is None or not values.size or not values.dtype.itemsize:
        return False
    data = np.ascontiguousarray(np.ma.getdata(values))
    characters = data.view(character).reshape(len(values), -1)
    return bool(np.any((characters[:, :-1] == 0) & (characters[:, 1:] != 0)))
