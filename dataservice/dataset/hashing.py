"""The hash that assigns keys to buckets: the same in every process, version and language.

An integer v (a boolean counts as 0 or 1) hashes to splitmix64(v as 64 bits, two's complement).
A string is taken as its UTF-8 bytes, cut into 8-byte little-endian words, the last padded with
zeros: h = splitmix64(length in bytes), then h = splitmix64(h xor word) for each word. The bucket is
h modulo the number of buckets. splitmix64 is the first output of the generator SplitMix64 (Steele,
Lea and Flood 2014). Invariant: changing any of this breaks models trained on hashed columns.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import apply_in_pool
from dataservice.errors import SchemaError
from dataservice.runtime.number_arrays import scalar_of, to_numbers
from dataservice.sharding import GOLDEN_GAMMA

_GAMMA: Final = np.uint64(GOLDEN_GAMMA)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_WORD_BYTES: Final = 8


def mix(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Computes splitmix64 of each element, uint64 to uint64, into `out` if it is given."""
    z = np.add(values, _GAMMA, out=out)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= _FIRST
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= _SECOND
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def hash_buckets(array: pa.Array, buckets: int) -> pa.Array:
    """Returns the bucket of each value as int64 in [0, buckets); null stays null.

    Raises SchemaError unless the values are integers, booleans, strings or binary.
    """

    def compute(out: np.ndarray) -> None:
        hashes = out.view(np.uint64)
        _hash(array, hashes)
        quotients = hashes // np.uint64(buckets)
        quotients *= np.uint64(buckets)
        hashes -= quotients

    return apply_in_pool(compute, array, pa.int64())


def _hash(array: pa.Array, out: np.ndarray) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind):
        _hash(array.dictionary_decode(), out)
    elif pa.types.is_boolean(kind):
        _hash(array.cast(pa.uint8()), out)
    elif pa.types.is_integer(kind):
        mix(_integers(array).view(np.uint64), out)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        out[:] = _hash_bytes(array, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        out[:] = _hash_bytes(array, np.int64)
    else:
        raise SchemaError(
            f"hash() takes integers, booleans, strings or binary, not {kind}; cast the column first"
        )


def _integers(array: pa.Array) -> np.ndarray:
    filled = array.fill_null(scalar_of(0, array.type)) if array.null_count else array
    target = np.uint64 if pa.types.is_unsigned_integer(array.type) else np.int64
    return to_numbers(filled).astype(target, copy=False)


def _hash_bytes(array: pa.Array, offset_type: type[np.integer[Any]]) -> np.ndarray:
    count = len(array)
    _, offsets_buffer, data = array.buffers()
    if count == 0 or offsets_buffer is None:
        return np.zeros(count, dtype=np.uint64)
    stored: np.ndarray = np.frombuffer(offsets_buffer, dtype=offset_type)
    offsets = stored[array.offset : array.offset + count + 1].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    words = _unaligned_words(data, int(offsets[0]), int(offsets[-1]))
    starts = starts - offsets[0]
    hashes = mix(lengths.astype(np.uint64))
    rows = np.flatnonzero(lengths > 0)
    position = 0
    while rows.size:
        word = words[starts[rows] + position]
        left = lengths[rows] - position
        padding = np.clip(_WORD_BYTES - left, 0, None).astype(np.uint64) * np.uint64(8)
        word = word & (_ALL_BITS >> padding)
        hashes[rows] = mix(hashes[rows] ^ word)
        position += _WORD_BYTES
        rows = rows[lengths[rows] > position]
    return hashes


def _unaligned_words(data: pa.Buffer | None, first: int, last: int) -> np.ndarray:
    """Returns the 8 bytes from each byte of data[first:last] on, as little-endian integers."""
    padded = np.zeros(last - first + _WORD_BYTES, dtype=np.uint8)
    if data is not None:
        padded[: last - first] = np.frombuffer(data, dtype=np.uint8)[first:last]
    return np.ndarray((last - first + 1,), dtype="<u8", buffer=padded, strides=(1,))
