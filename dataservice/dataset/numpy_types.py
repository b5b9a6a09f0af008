"""Types of NumPy that Arrow lacks or reads differently.

Knows arrays, nothing of batches. Invariant: the result of `stored_type` holds each value of the
given type.
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
    """Returns the type in native byte order and, for times, in a unit that Arrow has.

    Raises SchemaError, naming the column, for a type that has no form in Arrow.
    """
    if dtype.kind in "cV":
        raise SchemaError(
            f"column {name!r} of type {dtype} cannot be represented in Arrow; give its "
            "parts, such as array.real or array['field'], as columns of their own"
        )
    if dtype.kind in _WIDER_UNITS:
        unit, count = np.datetime_data(dtype)
        wider = _WIDER_UNITS[dtype.kind].get(unit, unit)
        if wider != unit or count != 1:
            return np.dtype(f"{dtype.kind}8[{wider}]")
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def is_masked(values: Any) -> bool:
    """True for a masked array; the first check avoids loading the module np.ma, which is lazy."""
    return type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray)


def has_zeros_inside(values: np.ndarray) -> bool:
    """True if strings of a 1-D array have characters after a NUL, where Arrow would end them."""
    character = _CHARACTERS.get(values.dtype.kind)
    if character is None or not values.size or not values.dtype.itemsize:
        return False
    data = np.ascontiguousarray(np.ma.getdata(values))
    characters = data.view(character).reshape(len(values), -1)
    return bool(np.any((characters[:, :-1] == 0) & (characters[:, 1:] != 0)))
