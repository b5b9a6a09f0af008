"""Converts rows of float32 numbers to bfloat16, the upper halves of their bits, and back.

Rounds to nearest, ties to even. A number whose lower bits are 0 stays the same, subnormals and
infinities included; NaN stays NaN. bfloat16 is stored as uint16, because NumPy has no such dtype.
Row ids are global, as in ``updates``; rows are contiguous.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import FLOAT_BYTES, ROWS_AHEAD, prefetch_row
from pstrain.kernels.vectors import LANES, WIDE_LANES, load, load_wide, store_bfloat16

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]


@njit(nogil=True, cache=True)
def gather_bfloat16(slab: F32, width: int, row_start: int, ids: I64, out: U16) -> None:
    """Copies values of rows ``ids`` of a slab to ``out`` [n, width]. Ids must be in range."""
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, width * FLOAT_BYTES)
        row = ids[position] - row_start
        column = 0
        while column + WIDE_LANES <= width:
            store_bfloat16(out, position, column, load_wide(slab, row, column))
            column += WIDE_LANES
        if column + LANES <= width:
            store_bfloat16(out, position, column, load(slab, row, column))
            column += LANES
        while column < width:
            store_bfloat16(out, position, column, slab[row, column])
            column += 1


@njit(nogil=True, cache=True)
def to_bfloat16(rows: F32, out: U16) -> None:
    """Converts as many columns of ``rows`` as ``out`` has."""
    width = out.shape[1]
    for row in range(out.shape[0]):
        column = 0
        while column + WIDE_LANES <= width:
            store_bfloat16(out, row, column, load_wide(rows, row, column))
            column += WIDE_LANES
        while column < width:
            store_bfloat16(out, row, column, rows[row, column])
            column += 1


@njit(nogil=True, cache=True)
def from_bfloat16(halves: U16, out: U32) -> None:
    """Converts bfloat16 numbers to the bits of as many float32 numbers; both have one axis."""
    for index in range(halves.size):
        out[index] = np.uint32(halves[index]) << np.uint32(16)


def warm_up() -> None:
    """Compiles for writable ids, made here, and for read-only ids, received."""
    slab, out = np.zeros((1, 2), np.float32), np.zeros((1, 1), np.uint16)
    ids, received = np.zeros(1, np.int64), np.zeros(1, np.int64)
    received.flags.writeable = False
    for rows in (ids, received):
        gather_bfloat16(slab, 1, 0, rows, out)
    to_bfloat16(slab, out)
    halves = out.reshape(-1)
    halves.flags.writeable = False
    from_bfloat16(halves, np.zeros(1, np.uint32))
