"""Keeping rows as they were: copies of what is about to change, and reading with them.

Rows are words here, of 4 bytes or 1, [rows, words per row]. They are kept in groups of ``group``
rows: group ``g`` was copied to place ``taken[g] - 1`` of ``kept`` if ``taken[g]`` is not 0. Groups
below ``read`` have been read, so nobody needs them any more.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import ROWS_AHEAD, ask_for

Words = NDArray[np.uint32] | NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_STRIDE = 8


@njit(nogil=True, cache=True)
def keep_group(
    rows: Words, group: int, index: int, taken: I32, kept: Words, used: int, read: int
) -> int:
    """Copies one group unless that was done or is not needed; how many are used then."""
    if index < read or taken[index]:
        return used
    first = index * group
    count = min(group, rows.shape[0] - first)
    at = used * group
    for row in range(count):
        source = rows[first + row]
        target = kept[at + row]
        for column in range(rows.shape[1]):
            target[column] = source[column]
    taken[index] = used + 1
    return used + 1


@njit(nogil=True, cache=True)
def keep_rows(
    rows: Words, row_start: int, ids: I64, group: int, taken: I32, kept: Words, used: int, read: int
) -> int:
    """Keeps rows ``ids``, which must be in range; how many groups are used then."""
    for position in range(ids.size):
        ahead = position + ROWS_AHEAD
        if ahead < ids.size:
            row = ids[ahead] - row_start
            ask_for(rows, row, rows.shape[1] * rows.itemsize)
            ask_for(taken, row // group, 1)
        index = (ids[position] - row_start) // group
        used = keep_group(rows, group, index, taken, kept, used, read)
    return used


@njit(nogil=True, cache=True)
def keep_range(
    rows: Words, first: int, last: int, group: int, taken: I32, kept: Words, used: int, read: int
) -> int:
    """Keeps rows ``[first, last)`` of the array; how many groups are used then."""
    for index in range(first // group, (last + group - 1) // group):
        used = keep_group(rows, group, index, taken, kept, used, read)
    return used


@njit(nogil=True, cache=True)
def read_column(rows: Words, first: int, a: int, b: int, start: int, out: Words) -> None:
    """Words from ``start`` on of a column as it is: rows from ``first`` on, one after the other.

    The column is words ``[a, b)`` of each row; ``out`` is flat and says how many words.
    """
    width = b - a
    row, word = first + start // width, a + start % width
    at = 0
    while at < out.size and word != a:
        out[at] = rows[row, word]
        at, word = at + 1, word + 1
        if word == b:
            row, word = row + 1, a
    whole = a + width // _STRIDE * _STRIDE
    last = row + (out.size - at) // width
    while row < last:
        # As many at a time as the compiler knows of, so that it moves them without a loop.
        for word in range(a, whole, _STRIDE):
            for step in range(_STRIDE):
                out[at + step] = rows[row, word + step]
            at += _STRIDE
        for word in range(whole, b):
            out[at] = rows[row, word]
            at += 1
        row += 1
    for word in range(out.size - at):
        out[at + word] = rows[row, a + word]


@njit(nogil=True, cache=True)
def read_kept(
    kept: Words, first: int, a: int, b: int, start: int, group: int, taken: I32, out: Words
) -> None:
    """Overwrites what :func:`read_column` gave of groups that were kept."""
    width = b - a
    stop = start + out.size
    low, high = first + start // width, first + (stop + width - 1) // width
    last = (high + group - 1) // group
    for index in range(low // group, last):
        ahead = min(index + ROWS_AHEAD, last - 1)
        if taken[ahead]:
            ask_for(kept, (taken[ahead] - 1) * group, group * kept.shape[1] * kept.itemsize)
        if not taken[index]:
            continue
        place = (taken[index] - 1) * group
        for row in range(max(index * group, low), min((index + 1) * group, high)):
            source = kept[place + row % group]
            at = (row - first) * width - start
            for word in range(max(0, -at), min(width, out.size - at)):
                out[at + word] = source[a + word]


def warm_up() -> None:
    """Compiles for ids made here and for those received, which are read-only."""
    taken, ids = np.zeros(1, np.int32), np.zeros(1, np.int64)
    received = ids.copy()
    received.flags.writeable = False
    for word in (np.uint32, np.uint8):
        rows, kept, out = np.zeros((1, 8), word), np.zeros((1, 8), word), np.zeros(8, word)
        for each in (ids, received):
            keep_rows(rows, 0, each, 1, taken, kept, 0, 0)
        keep_range(rows, 0, 1, 1, taken, kept, 0, 0)
        read_column(rows, 0, 0, 8, 0, out)
        read_kept(kept, 0, 0, 8, 0, 1, taken, out)
