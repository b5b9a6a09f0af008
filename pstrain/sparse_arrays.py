"""Arrays of numbers that are mostly zeros, as bytes: the others, and how far these are apart.

Knows nothing of messages. Invariant: what comes back equals what was packed, bit by bit, and is no
larger than ``MOST_BYTES``, whatever its packed form says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES: Final = 16 << 10
"""Of less there is little to gain."""
MOST_BYTES: Final = 64 << 20
_LEAST_ZEROS_SHARE: Final = 3 / 4


class Packed(NamedTuple):
    """The types of gaps and of values, and both one after the other."""

    gap_type: str
    value_type: str
    data: bytes


def packed(array: NDArray[Any]) -> Packed | None:
    """None where few values are zeros, or these are no numbers of four or eight bytes."""
    if not _is_packable(array.dtype):
        return None
    if not LEAST_BYTES <= array.nbytes <= MOST_BYTES:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    # Not a zero is minus zero. A search for true values takes a third of that for numbers.
    is_other = flat.view(f"u{array.itemsize}") != 0
    if np.count_nonzero(is_other) > (1 - _LEAST_ZEROS_SHARE) * len(flat):
        return None
    places = np.flatnonzero(is_other)
    gaps, values = _small(np.diff(places, prepend=-1)), _small(flat[places])
    return Packed(gaps.dtype.str, values.dtype.str, gaps.tobytes() + values.tobytes())


def unpacked(sparse: Packed, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Inverse of :func:`packed`; ValueError for what it cannot have made."""
    size = math.prod(shape)
    gap_type, value_type = np.dtype(sparse.gap_type), np.dtype(sparse.value_type)
    count, rest = divmod(len(sparse.data), gap_type.itemsize + value_type.itemsize)
    is_known = _is_packable(dtype) and value_type.kind == dtype.kind and gap_type.kind == "i"
    if rest or not is_known or min(shape, default=0) < 0:
        raise ValueError(f"{len(sparse.data)} bytes are no gaps and values of an array of {dtype}")
    if size * dtype.itemsize > MOST_BYTES:
        raise ValueError(f"{size * dtype.itemsize} bytes are more than an array of zeros may have")
    gaps = np.frombuffer(sparse.data, gap_type, count)
    places = np.cumsum(gaps, dtype=np.int64) - 1
    # Gaps that are too large could add up to a place that is none of theirs.
    if count and not (1 <= gaps.min() <= gaps.max() <= size and places[-1] < size):
        raise ValueError(f"values are not at places of an array of {size}")
    array = np.zeros(size, dtype)
    array[places] = np.frombuffer(sparse.data, value_type, count, gaps.nbytes)
    return array.reshape(shape)


def _is_packable(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize in (4, 8)


def _small(numbers: NDArray[Any]) -> NDArray[Any]:
    """Integers in the fewest bytes that hold all of them; others as they are."""
    if numbers.dtype.kind != "i" or not len(numbers):
        return numbers
    least, most = numbers.min(), numbers.max()
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers
