"""Finds the rows of keys in a server's table, and chooses free rows for new keys.

Each row of the table holds the key that has the row, ``VACATED`` if its key was evicted, or
``NO_KEY``. The row of a key lies in its bucket, a range of rows. The search begins at a row that
the key's hash selects, wraps around at the end of the bucket, and stops at the first row that never
had a key. Invariant: no two keys get the same row, and no key gets two.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import splitmix64
from pstrain.kernels.keys import NO_KEY, NO_ROW, NO_ROW_EVER, VACATED

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(nogil=True, cache=True)
def _first_place(key: int, start: int, stop: int) -> int:
    """Returns the row at which the search for a key begins.

    It is chosen by other bits of the hash than those that choose the bucket.
    """
    low = splitmix64(np.uint64(key)) & _LOW
    return start + np.int64((low * np.uint64(stop - start)) >> _32)


@njit(nogil=True, cache=True)
def find_rows(table: I64, row_start: int, keys: I64, starts: I64, stops: I64, out: I64) -> int:
    """``out[i]`` = row of ``keys[i]``, ``NO_ROW``, or ``NO_ROW_EVER``. ``table``: int64 [rows, 1].

    Returns how many keys have no row but may still get one.
    """
    missing = 0
    for i in range(len(keys)):
        row, found = _first_place(keys[i], starts[i], stops[i]), NO_ROW_EVER
        for _ in range(stops[i] - starts[i]):
            there = table[row - row_start, 0]
            if there == keys[i]:
                found = row
                break
            if there <= VACATED:
                found = NO_ROW
                if there == NO_KEY:
                    break
            row = row + 1 if row + 1 < stops[i] else starts[i]
        out[i] = found
        missing += found == NO_ROW
    return missing


@njit(nogil=True, cache=True)
def _chosen_by(row: int, chosen: I32, rows: I64) -> int:
    """Returns the slot of the key that has chosen ``row``, or the slot in which to note its key."""
    mask = np.uint64(len(chosen) - 1)
    slot = splitmix64(np.uint64(row)) & mask
    while chosen[slot] != 0 and rows[chosen[slot] - 1] != row:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def choose_rows(
    table: I64,
    row_start: int,
    keys: I64,
    starts: I64,
    stops: I64,
    may_claim: U8,
    chosen: I32,
    out: I64,
) -> int:
    """Finds rows as :func:`find_rows` does, and chooses free rows for keys that may claim one.

    Changes no row of the table. ``out`` must be the result of :func:`find_rows`, so that full
    buckets are not searched again. A key that is given twice gets one row. Returns how many keys
    that may claim found their bucket full. ``chosen`` must be zeros; its size is a power of 2, at
    least twice the number of keys.
    """
    refused = 0
    for i in range(len(keys)):
        if out[i] == NO_ROW_EVER:
            refused += may_claim[i] != 0
            continue
        row, found = _first_place(keys[i], starts[i], stops[i]), NO_ROW_EVER
        free, free_slot = np.int64(NO_ROW), np.uint64(0)
        for _ in range(stops[i] - starts[i]):
            there = table[row - row_start, 0]
            slot = _chosen_by(row, chosen, out) if there <= VACATED else np.uint64(0)
            if there <= VACATED and chosen[slot] != 0:
                there = keys[chosen[slot] - 1]
            if there == keys[i]:
                found = row
                break
            if there <= VACATED:
                found = NO_ROW
                if free == NO_ROW:
                    free, free_slot = row, slot
                if there == NO_KEY:
                    break
            row = row + 1 if row + 1 < stops[i] else starts[i]
        if found == NO_ROW and may_claim[i]:
            found = free
            chosen[free_slot] = i + 1
        out[i] = found
        refused += found == NO_ROW_EVER and may_claim[i] != 0
    return refused


@njit(nogil=True, cache=True)
def find_unpassed(table: I64, row_start: int, bounds: I64, out: I64) -> int:
    """Writes the vacated rows that no search for a present key passes to ``out``; returns how many.

    Such rows may become free rows, at which searches for other keys end sooner. ``bounds``: rows at
    which buckets begin, ascending, and the end of the last one.
    """
    count = 0
    for bucket in range(len(bounds) - 1):
        start, stop = bounds[bucket], bounds[bucket + 1]
        # How many more searches pass a row than the row before it.
        more = np.zeros(stop - start, np.int64)
        for row in range(start, stop):
            key = table[row - row_start, 0]
            if key > VACATED:
                first = _first_place(key, start, stop)
                more[first - start] += 1
                more[row - start] -= 1
                more[0] += row < first
        passing = 0
        for row in range(start, stop):
            passing += more[row - start]
            if passing == 0 and table[row - row_start, 0] == VACATED:
                out[count] = row
                count += 1
    return count


@njit(nogil=True, cache=True)
def count_keys(table: I64) -> int:
    """Returns how many rows of a table have a key."""
    count = 0
    for row in range(len(table)):
        count += table[row, 0] > VACATED
    return count


def warm_up() -> None:
    """Compiles for writable arrays, made here, and for read-only arrays, received."""
    table = np.full((2, 1), NO_KEY, np.int64)
    made = [np.ones(1, np.int64), np.zeros(1, np.int64), np.full(1, 2, np.int64)]
    may_claim, received = np.ones(1, np.uint8), [array.copy() for array in made]
    received_claims = may_claim.copy()
    for array in (*received, received_claims):
        array.flags.writeable = False
    for given, claims in ((made, may_claim), (received, received_claims)):
        rows = np.empty(1, np.int64)
        find_rows(table, 0, *given, rows)
        choose_rows(table, 0, *given, claims, np.zeros(2, np.int32), rows)
    for bounds in (np.arange(2), received[0]):
        find_unpassed(table, 0, bounds, np.empty(2, np.int64))
    count_keys(table)
