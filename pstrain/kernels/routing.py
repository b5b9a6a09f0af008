"""Finds the distinct rows that a step needs, and the shard that holds each.

Makes one pass over the ids with an open-addressing table (linear probing, Fibonacci hashing) whose
entries are indices into the list of distinct ids; for the skewed ids of recommendation data both
stay in the second-level cache. The table has spare room even if all ids are distinct, since a
search for an absent id takes longest, and so never grows. The shard of a row is found without
branches, which a processor could not predict. Must not know what a variable or a server is.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import GOLDEN
from pstrain.kernels.prefetch import ROWS_AHEAD, prefetch

_SMALLEST_TABLE_BITS = 10


@njit(nogil=True, cache=True)
def _shard_of(row: int, starts: NDArray[np.int64]) -> int:
    low, count = 0, starts.size - 1
    while count > 1:
        half = count >> 1
        low += half * (row >= starts[np.uint64(low + half)])
        count -= half
    return low


@njit(nogil=True, cache=True)
def _distinct(
    ids: NDArray[np.int64],
    low: int,
    high: int,
    unique: NDArray[np.int64],
    inverse: NDArray[np.int32],
) -> tuple[int, int]:
    """Finds the distinct ids in order of first appearance.

    Returns how many there are, and the first position out of range, or -1.
    """
    bits = _SMALLEST_TABLE_BITS
    while 7 << bits < 16 * ids.size:
        bits += 1
    table = np.zeros(1 << bits, np.int32)
    mask = np.uint64((1 << bits) - 1)
    shift = np.uint64(64 - bits)
    count = 0
    for position in range(ids.size):
        # The rest of the step has evicted the table's memory from the caches since its last use.
        ahead = np.uint64(ids[min(position + ROWS_AHEAD, ids.size - 1)])
        prefetch(table, np.intp((ahead * GOLDEN) >> shift), 0)
        key = ids[position]
        if key < low or key >= high:
            return count, position
        slot = (np.uint64(key) * GOLDEN) >> shift
        entry = table[slot]
        while entry != 0 and unique[np.uint64(entry - 1)] != key:
            slot = (slot + np.uint64(1)) & mask
            entry = table[slot]
        if entry == 0:
            unique[count] = key
            count += 1
            entry = np.int32(count)
            table[slot] = entry
        inverse[position] = entry - 1
    return count, -1


@njit(nogil=True, cache=True)
def _group(
    unique: NDArray[np.int64], inverse: NDArray[np.int32], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns ``unique`` in the order of shards (stable), and offsets; updates ``inverse``."""
    shards = starts.size - 1
    moved = np.empty(unique.size, np.int32)
    offsets = np.zeros(shards + 1, np.int64)
    for index in range(unique.size):
        shard = _shard_of(unique[index], starts)
        moved[index] = shard
        offsets[np.uint64(shard + 1)] += 1
    for index in range(shards):
        offsets[index + 1] += offsets[index]
    cursor = offsets[:-1].copy()
    grouped = np.empty(unique.size, np.int64)
    for index in range(unique.size):
        shard = np.uint64(moved[index])
        target = cursor[shard]
        cursor[shard] = target + 1
        moved[index] = target
        grouped[np.uint64(target)] = unique[index]
    for position in range(inverse.size):
        inverse[position] = moved[np.uint64(inverse[position])]
    return grouped, offsets


@njit(nogil=True, cache=True)
def route(
    ids: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], int]:
    """Returns distinct ids by shard, offsets of shards, the inverse, and the first bad position.

    ``ids`` int64 [n]; ``starts`` int64 [shards + 1], ascending row bounds: shard ``s`` holds rows
    ``[starts[s], starts[s + 1])``. Returns unique int64 [U] (by shard, then by first appearance),
    offsets int64 [shards + 1], inverse int32 [n] with ``unique[inverse] == ids``, and -1, or the
    position of the first id outside ``[starts[0], starts[-1])`` with the rest undefined.
    """
    unique = np.empty(ids.size, np.int64)
    inverse = np.empty(ids.size, np.int32)
    count, bad = _distinct(ids, starts[0], starts[-1], unique, inverse)
    if bad >= 0 or starts.size == 2:
        offsets = np.zeros(starts.size, np.int64)
        offsets[-1] = count
        return unique[:count], offsets, inverse, bad
    grouped, offsets = _group(unique[:count], inverse, starts)
    return grouped, offsets, inverse, bad


def warm_up() -> None:
    """Compiles for ids as in requests, with one shard and with several."""
    ids = np.zeros(1, np.int64)
    route(ids, np.array([0, 1], np.int64))
    route(ids, np.array([0, 1, 2], np.int64))
