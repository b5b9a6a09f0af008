"""Maps values to their numbers in a vocabulary, by a hash table that holds every token once.

The table uses open addressing with linear probing; an entry is a token's number plus 1. A match is
checked against the token itself, so two tokens are never confused. A value that is not a token gets
one of ``oov`` ids from ``base`` on, by its hash; the ids of tokens follow; a null gets ``null``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import bucket_of, hash_bytes, is_null, splitmix64

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def _same_bytes(a: Array, start: int, b: Array, other: int, size: int) -> bool:
    same = True
    for k in range(size):
        same &= a[start + k] == b[other + k]
    return same


@njit(nogil=True, cache=True)
def _find_text(
    data: Array, start: int, stop: int, table: Array, hashed: np.uint64, offsets: Array, text: Array
) -> int:
    """Returns the number of the token ``data[start:stop]``, or -1."""
    mask = np.uint64(len(table) - 1)
    slot = hashed & mask
    while table[slot] != 0:
        token = table[slot] - 1
        size = offsets[token + 1] - offsets[token]
        if size == stop - start and _same_bytes(data, start, text, offsets[token], size):
            return token
        slot = (slot + np.uint64(1)) & mask
    return -1


@njit(nogil=True, cache=True)
def _find_number(value: int, table: Array, hashed: np.uint64, numbers: Array) -> int:
    mask = np.uint64(len(table) - 1)
    slot = hashed & mask
    while table[slot] != 0:
        if numbers[table[slot] - 1] == value:
            return table[slot] - 1
        slot = (slot + np.uint64(1)) & mask
    return -1


@njit(nogil=True, cache=True)
def fill_with_text(offsets: Array, text: Array, table: Array) -> int:
    """Enters all tokens into ``table`` (int32 zeros); returns the number of a duplicate, or -1."""
    mask = np.uint64(len(table) - 1)
    for token in range(len(offsets) - 1):
        start, stop = offsets[token], offsets[token + 1]
        hashed = hash_bytes(text, start, stop)
        if _find_text(text, start, stop, table, hashed, offsets, text) >= 0:
            return token
        slot = hashed & mask
        while table[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = token + 1
    return -1


@njit(nogil=True, cache=True)
def fill_with_numbers(numbers: Array, table: Array) -> int:
    """Does the same as :func:`fill_with_text` for int64 tokens."""
    mask = np.uint64(len(table) - 1)
    for token in range(len(numbers)):
        hashed = splitmix64(np.uint64(numbers[token]))
        if _find_number(numbers[token], table, hashed, numbers) >= 0:
            return token
        slot = hashed & mask
        while table[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = token + 1
    return -1


@njit(nogil=True, cache=True)
def place_text(
    offsets: Array,
    data: Array,
    valid: Array,
    bit: int,
    table: Array,
    token_offsets: Array,
    tokens: Array,
    oov: int,
    base: int,
    null: int,
    out: Array,
    k: int,
) -> int:
    """``out[i, k]`` (int64) = id of string i; returns -1, or the first unknown if ``oov`` is 0."""
    unknown = -1
    for i in range(len(offsets) - 1):
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = null
            continue
        hashed = hash_bytes(data, offsets[i], offsets[i + 1])
        token = _find_text(data, offsets[i], offsets[i + 1], table, hashed, token_offsets, tokens)
        if token >= 0:
            out[i, k] = base + oov + token
        elif oov > 0:
            out[i, k] = base + bucket_of(hashed, np.uint64(oov))
        elif unknown < 0:
            unknown = i
    return unknown


@njit(nogil=True, cache=True)
def place_numbers(
    values: Array,
    valid: Array,
    bit: int,
    table: Array,
    tokens: Array,
    oov: int,
    base: int,
    null: int,
    out: Array,
    k: int,
) -> int:
    """Does the same as :func:`place_text` for integers."""
    unknown = -1
    for i in range(len(values)):
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = null
            continue
        value = np.int64(values[i])
        hashed = splitmix64(np.uint64(value))
        token = _find_number(value, table, hashed, tokens)
        if token >= 0:
            out[i, k] = base + oov + token
        elif oov > 0:
            out[i, k] = base + bucket_of(hashed, np.uint64(oov))
        elif unknown < 0:
            unknown = i
    return unknown


def warm_up() -> None:
    """Compiles for columns as Arrow provides them: read-only, of two widths."""
    table, out = np.zeros(2, np.int32), np.zeros((1, 1), np.int64)
    text, numbers = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    token_offsets = np.array([0, 1], np.int64)
    for tokens in (text, numbers, token_offsets):
        tokens.flags.writeable = False
    fill_with_text(token_offsets, text, table.copy())
    fill_with_numbers(numbers, table.copy())
    for dtype in (np.int32, np.int64):
        offsets, values = np.array([0, 1], dtype), np.zeros(1, dtype)
        offsets.flags.writeable = values.flags.writeable = False
        place_text(offsets, text, text[:0], 0, table, token_offsets, text, 1, 0, 9, out, 0)
        place_numbers(values, text[:0], 0, table, numbers, 1, 0, 9, out, 0)
