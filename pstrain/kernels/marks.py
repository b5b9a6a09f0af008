"""A bitmap of marked rows: bit ``row & 7`` of byte ``row >> 3`` is set for a marked row."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


@njit(nogil=True, cache=True)
def mark_rows(bits: U8, row_start: int, ids: I64) -> None:
    """Marks rows ``ids``, counted from ``row_start``; they must be in range."""
    for position in range(ids.size):
        row = ids[position] - row_start
        bits[row >> 3] |= np.uint8(1 << (row & 7))


@njit(nogil=True, cache=True)
def mark_range(bits: U8, first: int, last: int) -> None:
    """Marks rows ``[first, last)``."""
    row = first
    while row < last:
        if row & 7 == 0 and row + 8 <= last:
            bits[row >> 3] = 0xFF
            row += 8
        else:
            bits[row >> 3] |= np.uint8(1 << (row & 7))
            row += 1


@njit(nogil=True, cache=True)
def count_marked(bits: U8) -> int:
    """Returns how many rows are marked."""
    count = 0
    for index in range(bits.size):
        byte = bits[index]
        while byte:
            byte &= np.uint8(byte - 1)
            count += 1
    return count


def warm_up() -> None:
    """Compiles for writable ids, made here, and for read-only ids, received."""
    bits, ids = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    mark_rows(bits, 0, ids)
    received = ids.copy()
    received.flags.writeable = False
    mark_rows(bits, 0, received)
    mark_range(bits, 0, 1)
    count_marked(bits)
