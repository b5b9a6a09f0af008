"""The constants of expressions: which values are allowed, and their JSON form.

Knows nothing of expressions. Invariant: a value that `constant_of` returns is the same after it was
encoded, written as JSON and decoded.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.errors import InvalidArgumentError, InvalidTypeError

_PLAIN: Final = (bool, int, float, str, bytes)
_TIMES: Final = (datetime.date, datetime.time, datetime.timedelta)
_NUMPY: Final = (np.bool_, np.integer, np.floating, np.str_, np.bytes_)
_NUMPY_TIMES: Final = (np.datetime64, np.timedelta64)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


def constant_of(value: Any) -> Any:
    """Returns the constant, as a Python value if it is a scalar of NumPy or Arrow.

    Raises InvalidArgumentError, with the remedy, for a value that no expression can hold. So do
    times of NumPy and Arrow, which may have more digits than Python's.
    """
    if isinstance(value, _NUMPY) and not isinstance(value, _NUMPY_TIMES):
        value = value.item()
    elif isinstance(value, pa.Scalar) and not pa.types.is_temporal(value.type):
        value = value.as_py()
    _check_constant(value)
    return value


def _check_constant(value: Any) -> None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise InvalidArgumentError(
            f"an expression holds integers of 64 bits, from -2^63 to 2^64 - 1; got {value}"
        )
    plain = (*_PLAIN, *_TIMES, decimal.Decimal)
    conversion = _conversion_of(value)
    if conversion and not isinstance(value, plain):
        raise InvalidTypeError(
            f"{value!r} is a {type(value).__name__}; use the Python value, such as {conversion}"
        )
    if value is not None and not isinstance(value, plain):
        raise InvalidTypeError(
            f"an expression holds numbers, strings, bytes, dates, times and booleans; got {value!r}"
        )
    if isinstance(value, _TIMES) and value != value:
        raise InvalidArgumentError(f"an expression holds no {value!r}; use None, or is_null()")
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        raise InvalidArgumentError(f"Arrow has no {value!r}; use float({str(value)!r})")
    if isinstance(value, datetime.time) and value.tzinfo is not None:
        raise InvalidArgumentError(f"Arrow has times of day without a zone, got {value!r}")


def _conversion_of(value: Any) -> str:
    """Returns what makes a Python value of a scalar of NumPy, Arrow or the like; else ""."""
    if isinstance(value, _NUMPY_TIMES):
        # item() of nanoseconds is an integer.
        return f"value.astype('{type(value).__name__}[us]').item()"
    method = next((name for name in ("item", "as_py") if hasattr(value, name)), "")
    return method and f"value.{method}()"


def encode_constant(value: Any) -> Any:
    """Returns the JSON form of a constant, or of a tuple of constants."""
    if isinstance(value, tuple):
        return {"list": [encode_constant(item) for item in value]}
    if isinstance(value, datetime.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    if isinstance(value, datetime.time):
        return {"time": value.isoformat()}
    if isinstance(value, datetime.timedelta):
        return {"microseconds": value // _MICROSECOND}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    return value


def decode_constant(encoded: Any) -> Any:
    """Decodes the result of `encode_constant`; raises KeyError or ValueError for other values."""
    if not isinstance(encoded, Mapping):
        return encoded
    ((tag, content),) = encoded.items()
    if tag == "list":
        return tuple(decode_constant(item) for item in content)
    return _DECODERS[tag](content)


_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "microseconds": lambda count: count * _MICROSECOND,
    "decimal": decimal.Decimal,
    "bytes": functools.partial(base64.b64decode, validate=True),
}
