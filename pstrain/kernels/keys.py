"""Keys of columns, the buckets in which their rows lie, and the table of rows that a trainer knows.

The known rows are an open-addressing table of (key, row); threads may look up while another adds.
Invariant: a key's bucket depends on the key and its field's capacity alone, so that all processes
and releases agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import GOLDEN, bucket_of, hash_bytes, is_null, splitmix64
from pstrain.kernels.prefetch import ROWS_AHEAD, prefetch

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

NO_KEY = -(2**63)
"""A value that no key may have; it marks a free row, and a missing value."""

VACATED = NO_KEY + 1
"""Another value that no key may have; it marks a row whose key was evicted.

A new key may get the row. Unlike at a free row, the search for a key goes on behind it.
"""

BUCKET_ROWS = 1024

NO_ROW = -1
"""Given in place of a row number if the key has no row yet."""

NO_ROW_EVER = -2
"""Given in place of a row number if the key cannot get a row because its bucket is full."""

_UNKNOWN_ROW = -1
_WAYS = 4
_TOP_2 = np.uint64(62)


@njit(nogil=True, cache=True)
def place_integers(values: Any, valid: U8, bit: int, out: I64, k: int) -> None:
    """``out[i, k]`` = values[i], or ``NO_KEY`` if null by Arrow's bitmap from ``bit`` on.

    ``VACATED`` becomes ``NO_KEY`` too.
    """
    for i in range(len(values)):
        key = np.int64(values[i])
        out[i, k] = key if key > VACATED else NO_KEY
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = NO_KEY


@njit(nogil=True, cache=True)
def place_text(offsets: Any, data: U8, valid: U8, bit: int, out: I64, k: int) -> None:
    """``out[i, k]`` = XXH64(data[offsets[i] : offsets[i + 1]]), or ``NO_KEY`` for nulls."""
    for i in range(len(offsets) - 1):
        hashed = np.int64(hash_bytes(data, offsets[i], offsets[i + 1]))
        out[i, k] = hashed if hashed > VACATED else VACATED + 1
        if len(valid) and is_null(valid, bit + i):
            out[i, k] = NO_KEY


@njit(nogil=True, cache=True)
def find_buckets(
    keys: I64, fields: I64, first: I64, capacity: I64, starts: I64, stops: I64
) -> None:
    """Computes the bucket ``[starts[i], stops[i])`` of ``keys[i]``, which is of ``fields[i]``.

    The first row of a field belongs to no key. The others are divided into buckets whose sizes
    differ by at most one row.
    """
    for i in range(len(keys)):
        field = fields[i]
        rows = capacity[field] - 1
        buckets = (rows + BUCKET_ROWS - 1) // BUCKET_ROWS
        bucket = bucket_of(splitmix64(np.uint64(keys[i])), np.uint64(buckets))
        size, larger = rows // buckets, rows % buckets
        starts[i] = first[field] + 1 + bucket * size + min(bucket, larger)
        stops[i] = starts[i] + size + (bucket < larger)


@njit(nogil=True, cache=True)
def _slot_of(key: int, salt: np.uint64, shift: np.uint64) -> np.uint64:
    return ((np.uint64(key) ^ salt) * GOLDEN) >> shift


@njit(nogil=True, cache=True)
def replace_known(
    known: I64,
    ids: I64,
    columns: I64,
    first: I64,
    capacity: I64,
    targets: I64,
    nulls: I64,
    missing: I64,
    is_training: bool,
) -> int:
    """Replaces keys in ``columns`` of ``ids`` [n, k] by ids, if they are ``known`` [2^b, 2].

    Column ``columns[f]`` has keys of field f. The id of a key is ``targets[f]`` + its row, counted
    from the first row of the field; the id of ``NO_KEY`` is ``nulls[f]``. Returns how many keys are
    not known; these stay as they are, and their places, ``i * len(columns) + f``, go to
    ``missing``. Rows that are stored as ``~row`` are known only if not ``is_training``.

    Another thread may add to ``known`` meanwhile: the row of a half-written entry is in no field.
    """
    mask = np.uint64(len(known) - 1)
    shift = np.uint64(64)
    while np.uint64(1) << (np.uint64(64) - shift) < np.uint64(len(known)):
        shift -= np.uint64(1)
    fields = len(columns)
    ahead = max(1, ROWS_AHEAD // max(1, fields))
    count = 0
    for i in range(len(ids)):
        later = min(i + ahead, len(ids) - 1)
        for field in range(fields):
            column = columns[field]
            salt = np.uint64(first[field]) * GOLDEN
            prefetch(known, np.intp(_slot_of(ids[later, column], salt, shift)), 0)
            key = ids[i, column]
            if key == NO_KEY:
                ids[i, column] = nulls[field]
                continue
            slot = _slot_of(key, salt, shift)
            row = np.int64(_UNKNOWN_ROW)
            while known[slot, 0] != NO_KEY:
                if known[slot, 0] == key:
                    row = known[slot, 1]
                    if row < _UNKNOWN_ROW and not is_training:
                        row = ~row
                    row -= first[field]
                    if 0 <= row < capacity[field]:
                        break
                    row = np.int64(_UNKNOWN_ROW)
                slot = (slot + np.uint64(1)) & mask
            if row >= 0:
                ids[i, column] = targets[field] + row
            else:
                missing[count] = i * fields + field
                count += 1
    return count


@njit(nogil=True, cache=True)
def add_known(known: I64, keys: I64, rows: I64, salts: I64) -> int:
    """Adds keys with their rows; returns how many are new. ``salts``: their fields' first rows."""
    mask = np.uint64(len(known) - 1)
    shift = np.uint64(64)
    while np.uint64(1) << (np.uint64(64) - shift) < np.uint64(len(known)):
        shift -= np.uint64(1)
    added = 0
    for i in range(len(keys)):
        slot = _slot_of(keys[i], np.uint64(salts[i]) * GOLDEN, shift)
        while known[slot, 0] != NO_KEY and (known[slot, 0] != keys[i] or known[slot, 1] != rows[i]):
            slot = (slot + np.uint64(1)) & mask
        added += known[slot, 0] == NO_KEY
        known[slot, 1] = rows[i]
        known[slot, 0] = keys[i]
    return added


@njit(nogil=True, cache=True)
def count_occurrences(
    counts: I64, keys: I64, salts: I64, times: I64, minimum: I64, out: U8
) -> None:
    """Adds ``times`` to the count of each key; ``out`` says whether the count reached ``minimum``.

    ``counts`` [2^b, 3]: key, first row of its field, count; a count that reaches ``minimum`` is
    removed. A key can be in one of four places. If other keys have all four, it evicts the rarest,
    and among equally rare ones prefers a place that its hash selects, so that no key stays for
    ever.
    """
    sets = np.uint64(len(counts) // _WAYS - 1)
    for i in range(len(keys)):
        mixed = splitmix64(np.uint64(keys[i]) ^ (np.uint64(salts[i]) * GOLDEN))
        start = np.int64((mixed & sets) * np.uint64(_WAYS))
        place = start + np.int64(mixed >> _TOP_2)
        for at in range(start, start + _WAYS):
            if counts[at, 0] == keys[i] and counts[at, 1] == salts[i]:
                place = at
                break
            if counts[at, 2] < counts[place, 2]:
                place = at
        if counts[place, 0] != keys[i] or counts[place, 1] != salts[i]:
            counts[place, 0], counts[place, 1], counts[place, 2] = keys[i], salts[i], 0
        counts[place, 2] += times[i]
        out[i] = counts[place, 2] >= minimum[i]
        if out[i]:
            counts[place, 0], counts[place, 2] = NO_KEY, 0


def warm_up() -> None:
    """Compiles for read-only columns, as Arrow provides them, and for arrays made here."""
    keys, zeros, rows = np.ones(1, np.int64), np.zeros(1, np.int64), np.full(1, 2, np.int64)
    table, admitted = np.full((2, 1), NO_KEY, np.int64), np.empty(1, np.uint8)
    find_buckets(keys, zeros, zeros, rows, keys.copy(), keys.copy())
    for dtype in (np.int32, np.int64):
        values = np.zeros(2, dtype)
        values.flags.writeable = False
        bitmap = values.view(np.uint8)
        place_integers(values, bitmap, 0, table.copy(), 0)
        place_text(values, bitmap, bitmap, 0, table.copy(), 0)
    known = np.full((2, 2), NO_KEY, np.int64)
    add_known(known, keys, zeros, zeros)
    replace_known(known, table.copy(), zeros, zeros, rows, zeros, zeros, rows.copy(), True)
    count_occurrences(np.zeros((_WAYS, 3), np.int64), keys, zeros, keys, rows, admitted)
