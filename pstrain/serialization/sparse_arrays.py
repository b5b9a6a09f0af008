"""Packs arrays that are mostly zeros as bytes: the other values, and the gaps between their places.

Knows nothing of messages. Invariant: unpacking returns bit for bit what was packed, and never an
array larger than ``MOST_BYTES``, whatever the packed form claims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES: Final = 16 << 10
"""Packing smaller arrays gains little."""
MOST_BYTES: Final = 64 << 20
_LEAST_ZEROS_SHARE: Final = 3 / 4


class Packed(NamedTuple):
    """A packed array: the dtypes of gaps and values, and the bytes of all gaps, then all values."""

    gap_type: str
    value_type: str
    data: bytes


def packed(array: NDArray[Any]) -> Packed | None:
    """Packs an array; None if packing does not apply.

    It applies to numbers of 4 or 8 bytes, at least three quarters of them 0, of ``LEAST_BYTES`` to
    ``MOST_BYTES`` in total.
    """
    if not _is_packable(array.dtype):
        return None
    if not LEAST_BYTES <= array.nbytes <= MOST_BYTES:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    # Compared as unsigned integers, because -0.0 is not packed as 0. A search for true values takes
    # a third of the time of a search for numbers.
    is_other = flat.view(f"u{array.itemsize}") != 0
    if np.count_nonzero(is_other) > (1 - _LEAST_ZEROS_SHARE) * len(flat):
        return None
    places = np.flatnonzero(is_other)
    gaps, values = _small(np.diff(places, prepend=-1)), _small(flat[places])
    return Packed(gaps.dtype.str, values.dtype.str, gaps.tobytes() + values.tobytes())


def unpacked(sparse: Packed, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Unpacks the result of :func:`packed`; ValueError for bytes that it cannot have made."""
    size = math.prod(shape)
    gap_type, value_type = np.dtype(sparse.gap_type), np.dtype(sparse.value_type)
    count, rest = divmod(len(sparse.data), gap_type.itemsize + value_type.itemsize)
    is_known = _is_packable(dtype) and value_type.kind == dtype.kind and gap_type.kind == "i"
    if rest or not is_known or min(shape, default=0) < 0:
        raise ValueError(f"{len(sparse.data)} bytes are not gaps and values of an array of {dtype}")
    if size * dtype.itemsize > MOST_BYTES:
        raise ValueError(f"{size * dtype.itemsize} bytes are more than an array of zeros may have")
    gaps = np.frombuffer(sparse.data, gap_type, count)
    places = np.cumsum(gaps, dtype=np.int64) - 1
    # Gaps beyond the array's size could overflow and add up to a valid place.
    if count and not (1 <= gaps.min() <= gaps.max() <= size and places[-1] < size):
        raise ValueError(f"values are not at places of an array of {size}")
    array = np.zeros(size, dtype)
    array[places] = np.frombuffer(sparse.data, value_type, count, gaps.nbytes)
    return array.reshape(shape)


def _is_packable(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize in (4, 8)


def _small(numbers: NDArray[Any]) -> NDArray[Any]:
    """Returns integers in the smallest dtype that holds all of them; other dtypes unchanged."""
    if numbers.dtype.kind != "i" or not len(numbers):
        return numbers
    least, most = numbers.min(), numbers.max()
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers
