"""Maps columns to ids, numbers and labels: hashes of integers and Arrow strings, plain ids, floats.

A kernel for features fills column ``k`` of a row-major matrix from one Arrow column. Nulls go to
bucket ``buckets``, one past the others. ``valid`` is Arrow's validity bitmap from bit ``bit`` on,
or empty if nothing is null. Invariant: the bucket of a value depends on the value and the number of
buckets alone, so that all processes and releases agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

# 2^64 over the golden ratio, an odd number: its multiples are spread over all 64 bits.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)
_32 = np.uint64(32)


@njit(nogil=True, cache=True)
def mix64(z: np.uint64) -> np.uint64:
    """Mixes 64 bits into 64 bits, one to one; 0 stays 0."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True)
def splitmix64(value: np.uint64) -> np.uint64:
    """Mixes 64 bits into 64 bits, one to one (Steele, Lea, Flood: SplitMix, 2014)."""
    return mix64(value + GOLDEN)


@njit(nogil=True, cache=True)
def bucket_of(hashed: np.uint64, buckets: np.uint64) -> np.int64:
    """Maps 64 hashed bits to [0, buckets) by multiplication (Lemire, 2019); buckets < 2^32."""
    return np.int64(((hashed >> _32) * buckets) >> _32)


@njit(nogil=True, cache=True)
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(nogil=True, cache=True)
def _round(accumulator: np.uint64, lane: np.uint64) -> np.uint64:
    return _rotate(accumulator + lane * _PRIME_2, 31) * _PRIME_1


@njit(nogil=True, cache=True)
def _little_endian(data: Array, at: int, size: int) -> np.uint64:
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@njit(nogil=True, cache=True)
def _hash_stripes(data: Array, start: int, stop: int) -> np.uint64:
    """Hashes the 32-byte stripes of XXH64 with seed 0, for inputs of at least 32 bytes."""
    v1, v2 = _PRIME_1 + _PRIME_2, _PRIME_2
    v3, v4 = np.uint64(0), np.uint64(0) - _PRIME_1
    at = start
    while at + 32 <= stop:
        v1 = _round(v1, _little_endian(data, at, 8))
        v2 = _round(v2, _little_endian(data, at + 8, 8))
        v3 = _round(v3, _little_endian(data, at + 16, 8))
        v4 = _round(v4, _little_endian(data, at + 24, 8))
        at += 32
    total = _rotate(v1, 1) + _rotate(v2, 7) + _rotate(v3, 12) + _rotate(v4, 18)
    for lane in (v1, v2, v3, v4):
        total = (total ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4
    return total


@njit(nogil=True, cache=True)
def hash_bytes(data: Array, start: int, stop: int) -> np.uint64:
    """Computes XXH64 with seed 0 of ``data[start:stop]`` (uint8), as published by Yann Collet."""
    size = stop - start
    total = _PRIME_5
    at = start
    if size >= 32:
        total = _hash_stripes(data, start, stop)
        at = stop - size % 32
    total += np.uint64(size)
    while at + 8 <= stop:
        total ^= _round(np.uint64(0), _little_endian(data, at, 8))
        total = _rotate(total, 27) * _PRIME_1 + _PRIME_4
        at += 8
    if at + 4 <= stop:
        total ^= _little_endian(data, at, 4) * _PRIME_1
        total = _rotate(total, 23) * _PRIME_2 + _PRIME_3
        at += 4
    while at < stop:
        total ^= np.uint64(data[at]) * _PRIME_5
        total = _rotate(total, 11) * _PRIME_1
        at += 1
    total = (total ^ (total >> np.uint64(33))) * _PRIME_2
    total = (total ^ (total >> np.uint64(29))) * _PRIME_3
    return total ^ (total >> _32)


@njit(nogil=True, cache=True)
def is_null(valid: Array, bit: int) -> bool:
    """True if the bit of the bitmap is 0."""
    return (valid[bit >> 3] >> (bit & 7)) & 1 == 0


@njit(nogil=True, cache=True)
def hash_integers(
    values: Array, valid: Array, bit: int, buckets: int, base: int, out: Array, k: int
) -> None:
    """``out[i, k]`` (int64) = base + bucket of splitmix64(values[i])."""
    size = np.uint64(buckets)
    for i in range(len(values)):
        out[i, k] = base + bucket_of(splitmix64(np.uint64(np.int64(values[i]))), size)
    if len(valid):
        for i in range(len(values)):
            if is_null(valid, bit + i):
                out[i, k] = base + buckets


@njit(nogil=True, cache=True)
def hash_strings(
    offsets: Array, data: Array, valid: Array, bit: int, buckets: int, base: int, out: Array, k: int
) -> None:
    """``out[i, k]`` (int64) = base + bucket of XXH64(data[offsets[i] : offsets[i + 1]])."""
    size = np.uint64(buckets)
    for i in range(len(offsets) - 1):
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = base + buckets
        else:
            out[i, k] = base + bucket_of(hash_bytes(data, offsets[i], offsets[i + 1]), size)


@njit(nogil=True, cache=True)
def place_ids(
    values: Array, valid: Array, bit: int, buckets: int, base: int, out: Array, k: int
) -> int:
    """``out[i, k]`` (int64) = base + values[i]; returns the first row out of range, or -1."""
    wrong: Any = 0
    for i in range(len(values)):
        value = np.int64(values[i])
        wrong |= (value < 0) | (value >= buckets)
        out[i, k] = base + value
    if len(valid):
        wrong = 0
        for i in range(len(values)):
            if is_null(valid, bit + i):
                out[i, k] = base + buckets
            else:
                wrong |= (values[i] < 0) | (values[i] >= buckets)
    if wrong:
        for i in range(len(values)):
            value = np.int64(values[i])
            null = len(valid) > 0 and is_null(valid, bit + i)
            if not null and (value < 0 or value >= buckets):
                return i
    return -1


@njit(nogil=True, cache=True)
def place_dictionary(
    indices: Array, codes: Array, valid: Array, bit: int, null: int, out: Array, k: int
) -> None:
    """``out[i, k]`` (int64) = codes[indices[i], 0], or ``null`` if the index is null."""
    for i in range(len(indices)):
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = null
        else:
            out[i, k] = codes[indices[i], 0]


@njit(nogil=True, cache=True)
def place_dense(
    values: Array, valid: Array, bit: int, mean: float, scale: float, out: Array, k: int
) -> int:
    """``out[i, k]`` (float32) = (values[i] - mean) * scale, 0 for nulls and NaN.

    Returns the first row that is infinite, or -1.
    """
    infinite = -1
    for i in range(len(values)):
        value: Any = (np.float64(values[i]) - mean) * scale
        missing = value != value or (len(valid) > 0 and is_null(valid, bit + i))
        if missing:
            value = 0.0
        elif abs(value) > 3.4e38 and infinite < 0:
            infinite = i
        out[i, k] = value
    return infinite


@njit(nogil=True, cache=True)
def place_labels(values: Array, out: Array) -> int:
    """``out[i]`` (float32) = values[i]; returns the first row that is neither 0 nor 1, or -1."""
    wrong = 0
    for i in range(len(values)):
        value = np.float32(values[i])
        wrong |= (value != 0) & (value != 1)
        out[i] = value
    if wrong:
        for i in range(len(values)):
            if values[i] != 0 and values[i] != 1:
                return i
    return -1


def warm_up() -> None:
    """Compiles for columns as Arrow provides them: read-only, of four number types."""
    bitmap = np.full(1, 255, dtype=np.uint8)
    bitmap.flags.writeable = False
    ids, dense = np.zeros((2, 1), dtype=np.int64), np.zeros((2, 1), dtype=np.float32)
    labels = np.zeros(2, dtype=np.float32)
    for dtype in (np.int32, np.int64, np.float32, np.float64):
        values = np.zeros(2, dtype=dtype)
        values.flags.writeable = False
        place_dense(values, bitmap, 0, 0.0, 1.0, dense, 0)
        place_labels(values, labels)
        if np.issubdtype(dtype, np.integer):
            hash_integers(values, bitmap, 0, 4, 0, ids, 0)
            hash_strings(values, bitmap, bitmap, 0, 4, 0, ids, 0)
            place_ids(values, bitmap, 0, 4, 0, ids, 0)
            place_dictionary(values, ids, bitmap, 0, 4, ids, 0)
