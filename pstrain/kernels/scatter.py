"""Changes rows of a slab by given rows, one after the other, without an update rule.

The rows of a slab begin with ``width`` values. Row ids are global and may repeat; ``row_start`` is
the first row of the slab. Ids and rows must be read-only, so that the kernel is compiled once.
Invariant: the result is that of NumPy's ``ufunc.at``, NaN and infinity included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import FLOAT_BYTES, ROWS_AHEAD, prefetch_row

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

SET, ADD, SUB, MUL, DIV, MIN, MAX = range(7)


@njit(nogil=True, cache=True, error_model="numpy")
def _changed(old: Any, new: Any, op: int) -> Any:
    if op == ADD:
        return old + new
    if op == SUB:
        return old - new
    if op == MUL:
        return old * new
    if op == DIV:
        return old / new
    # A NaN on either side gives NaN.
    if op == MIN:
        return old if old <= new or np.isnan(old) else new
    if op == MAX:
        return old if old >= new or np.isnan(old) else new
    return new


@njit(nogil=True, cache=True, error_model="numpy")
def scatter_rows(slab: F32, width: int, row_start: int, ids: I64, rows: F32, op: int) -> None:
    """Applies ``op`` (``SET``, ``ADD``, ...) with ``rows`` [n, width] to rows ``ids``, in order."""
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, width * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        for column in range(width):
            row[column] = _changed(row[column], rows[position, column], op)


def warm_up() -> None:
    """Compiles for read-only ids and rows."""
    slab, ids = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)
    rows = slab.copy()
    ids.flags.writeable = rows.flags.writeable = False
    scatter_rows(slab, 1, 0, ids, rows, SET)
