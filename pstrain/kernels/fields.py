"""Groups the ids of a batch by field: the rows of each example, and the examples of each row.

The ids of a field are numbered with a table that stays in the first-level cache. The data of a
field is contiguous, so that a pass over the field reads memory in order. In each field, ids that
several examples have (they *repeat*) come before ids that only one example has. Must not know what
an id stands for. Invariant: the result is a function of the ids, in order of first appearance.

``starts`` int64 [fields + 1], ``middles`` int64 [fields]: field ``f`` has the distinct ids
``[starts[f], middles[f])``, which repeat, and ``[middles[f], starts[f + 1])``, which do not.
``repeated`` int32 [n, fields]: the number of an example's id among all repeating ids, from 1, or 0
if its id does not repeat. ``examples`` int32 [fields * n]: the examples of each field in turn;
repeating id ``r`` has ``examples[firsts[r] : ends[r]]``, and the last ones of a field are those of
its other ids, in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import GOLDEN
from pstrain.kernels.prefetch import prefetch

Array = NDArray[Any]

_SMALLEST_TABLE_BITS = 6
# The ids of one field are a whole row apart in memory, so they are prefetched.
_EXAMPLES_AHEAD = 40


@njit(nogil=True, cache=True)
def _number(
    ids: Array,
    field: int,
    table: Array,
    before: np.int32,
    found: Array,
    counts: Array,
    numbers: Array,
) -> np.int32:
    """Numbers a field's ids in order of first appearance, and counts the examples of each.

    Returns how many there are. ``table`` holds the numbers plus ``before``; smaller entries are
    left from earlier fields. Whether an id is new cannot be foreseen, so nothing branches on it:
    what is known already is written again.
    """
    mask = np.uint64(table.size - 1)
    bits = np.uint64(0)
    while table.size >> bits > 1:
        bits += np.uint64(1)
    shift = np.uint64(64) - bits
    count = np.int32(0)
    offset = np.intp(field * ids.itemsize)
    counts[:] = 0
    for i in range(ids.shape[0]):
        prefetch(ids, np.intp(i + _EXAMPLES_AHEAD), offset)
        key = ids[np.uint64(i), np.uint64(field)]
        slot = (np.uint64(key) * GOLDEN) >> shift
        entry = table[slot] - before
        while (entry >= 0) & (found[np.uint64(max(entry, np.int32(0)))] != key):
            slot = (slot + np.uint64(1)) & mask
            entry = table[slot] - before
        is_new = entry < 0
        entry = count if is_new else entry
        count += np.int32(is_new)
        found[np.uint64(entry)] = key
        table[slot] = before + entry
        counts[np.uint64(entry)] += np.int32(1)
        numbers[np.uint64(i)] = entry
    return count


@njit(nogil=True, cache=True)
def group_by_field(
    ids: Array,
    distinct: Array,
    starts: Array,
    middles: Array,
    repeated: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
) -> int:
    """Fills all given arrays but ``ids`` (int64 [n, fields]); returns how many ids repeat.

    ``distinct`` (int64) must have room for n * fields ids, ``firsts`` and ``ends`` for one more.
    """
    size, fields = ids.shape
    bits = _SMALLEST_TABLE_BITS
    while 1 << bits < 2 * size:
        bits += 1
    table = np.full(1 << bits, -1, np.int32)
    found, counts = np.empty(size, np.int64), np.empty(size, np.int32)
    numbers = np.empty(size, np.int32)
    total, repeating = np.int32(0), np.int32(0)
    firsts[0] = ends[0] = 0
    for f in range(fields):
        count = _number(ids, f, table, total, found, counts, numbers)
        several = np.int32(0)
        for k in range(count):
            several += np.int32(counts[k] > 1)
        at, one, many = np.int32(f * size), total + several, total
        for k in range(count):
            # From here on ``counts`` holds the number of the repeating id, or 0.
            occurrences = counts[k]
            repeats = np.int32(occurrences > 1)
            distinct[np.uint64(many if repeats else one)] = found[k]
            many += repeats
            one += np.int32(1) - repeats
            following = np.uint64(repeating + np.int32(1))
            firsts[following] = ends[following] = at
            at += occurrences * repeats
            repeating += repeats
            counts[k] = repeating * repeats
        ends[0] = at
        for i in range(size):
            which = counts[np.uint64(numbers[i])]
            repeated[np.uint64(i), np.uint64(f)] = which
            end = ends[np.uint64(which)]
            examples[np.uint64(end)] = i
            ends[np.uint64(which)] = end + np.int32(1)
        starts[f], middles[f] = total, total + several
        total += count
    starts[fields] = total
    return repeating


@njit(nogil=True, cache=True)
def rows_of_examples(
    order: Array, starts: Array, examples: Array, firsts: Array, ends: Array, inverse: Array
) -> None:
    """inverse[i, f] (int32) = ``order`` of the id that example ``i`` has in field ``f``."""
    size, fields = inverse.shape
    repeating = 0
    for f in range(fields):
        at, s = f * size, starts[f]
        while at < (f + 1) * size:
            last = at + 1
            if repeating + 1 < firsts.size and firsts[repeating + 1] == at:
                repeating += 1
                last = ends[repeating]
            for e in range(at, last):
                inverse[np.uint64(examples[e]), f] = order[s]
            at = last
            s += 1


def warm_up() -> None:
    """Compiles for writable ids and for read-only ids."""
    ids, order, repeated = np.zeros((1, 1), np.int64), np.zeros(2, np.int32), np.zeros((1, 1), "i4")
    starts, distinct = np.zeros(2, np.int64), np.zeros(1, np.int64)
    received = ids.copy()
    received.flags.writeable = False
    for each in (ids, received):
        group_by_field(each, distinct, starts, distinct, repeated, order, order, order.copy())
    rows_of_examples(order[:1], starts, order[:1], order[:1], order[:1], repeated)
