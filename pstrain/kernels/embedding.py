"""Copies looked-up rows into the matrix that a network reads, and adds its gradient to the rows.

``inverse`` (int32 [n * fields]) gives the row of each id of each example, as in ``Lookup``. Rows of
matrices are contiguous. Knows no model. Invariant: only the named columns are written; the caller's
other columns stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import FLOAT_BYTES, ROWS_AHEAD, prefetch_row
from pstrain.kernels.vectors import LANES, WIDE_LANES, load, load_wide, plus, store

Array = NDArray[Any]


# Inlined: a call with array arguments counts references to them, and so each row would wait for the
# one before.
@njit(nogil=True, cache=True, inline="always")
def _copy(rows: Array, row: int, skipped: int, out: Array, i: int, at: int) -> None:
    """out[i, at:] = rows[row, skipped:], for all columns that the row has from ``skipped`` on."""
    last, column = rows.shape[1], skipped
    shift = at - skipped
    while column + WIDE_LANES <= last:
        store(out, i, shift + column, load_wide(rows, row, column))
        column += WIDE_LANES
    if column + LANES <= last:
        store(out, i, shift + column, load(rows, row, column))
        column += LANES
    while column < last:
        out[i, shift + column] = rows[np.uint64(row), column]
        column += 1


@njit(nogil=True, cache=True, inline="always")
def _add(gradient: Array, i: int, at: int, out: Array, row: int, skipped: int) -> None:
    """out[row, skipped:] += gradient[i, at:], for all columns of ``out`` from ``skipped`` on."""
    last, column = out.shape[1], skipped
    shift = at - skipped
    while column + WIDE_LANES <= last:
        wide = load_wide(gradient, i, shift + column)
        store(out, row, column, plus(load_wide(out, row, column), wide))
        column += WIDE_LANES
    if column + LANES <= last:
        some = load(gradient, i, shift + column)
        store(out, row, column, plus(load(out, row, column), some))
        column += LANES
    while column < last:
        out[np.uint64(row), column] += gradient[i, shift + column]
        column += 1


@njit(nogil=True, cache=True)
def gather_fields(rows: Array, inverse: Array, fields: int, out: Array) -> None:
    """out[i, f * dim : (f + 1) * dim] = rows[inverse[i * fields + f]]; rows [U, dim]."""
    dim, last = rows.shape[1], inverse.size - 1
    for i in range(out.shape[0]):
        for f in range(fields):
            at = i * fields + f
            prefetch_row(rows, inverse[min(at + ROWS_AHEAD, last)], dim * FLOAT_BYTES)
            _copy(rows, inverse[np.uint64(at)], 0, out, i, f * dim)


@njit(nogil=True, cache=True)
def scatter_fields(gradient: Array, inverse: Array, fields: int, out: Array) -> None:
    """Adds gradient[i, f * dim : (f + 1) * dim] to out[inverse[i * fields + f]]; out [U, dim]."""
    dim, last = out.shape[1], inverse.size - 1
    for i in range(gradient.shape[0]):
        for f in range(fields):
            at = i * fields + f
            prefetch_row(out, inverse[min(at + ROWS_AHEAD, last)], dim * FLOAT_BYTES)
            _add(gradient, i, f * dim, out, inverse[np.uint64(at)], 0)


@njit(nogil=True, cache=True)
def gather_wide_deep(
    rows: Array, bias: Array, inverse: Array, fields: int, out: Array, wide: Array
) -> None:
    """Sums bias and column 0 of each row per example into ``wide``; copies the rest into ``out``.

    rows float32 [U, 1 + dim]; bias float32 [1]; out float32 [n, >= fields * dim]; wide float32 [n].
    """
    dim, last = rows.shape[1] - 1, inverse.size - 1
    for i in range(wide.shape[0]):
        total = bias[0]
        for f in range(fields):
            at = i * fields + f
            prefetch_row(rows, inverse[min(at + ROWS_AHEAD, last)], (1 + dim) * FLOAT_BYTES)
            row = inverse[np.uint64(at)]
            total += rows[np.uint64(row), 0]
            _copy(rows, row, 1, out, i, f * dim)
        wide[i] = total


@njit(nogil=True, cache=True)
def scatter_wide_deep(
    gradient: Array, wide_gradient: Array, inverse: Array, fields: int, out: Array
) -> None:
    """Adds the gradients of :func:`gather_wide_deep` to ``out``, float32 [U, 1 + dim]."""
    dim, last = out.shape[1] - 1, inverse.size - 1
    for i in range(wide_gradient.shape[0]):
        wide = wide_gradient[i]
        for f in range(fields):
            at = i * fields + f
            prefetch_row(out, inverse[min(at + ROWS_AHEAD, last)], (1 + dim) * FLOAT_BYTES)
            row = inverse[np.uint64(at)]
            out[np.uint64(row), 0] += wide
            _add(gradient, i, f * dim, out, row, 1)


def warm_up() -> None:
    """Compiles for float32 rows: writable if gathered here, read-only if received."""
    rows, bias = np.zeros((1, 3), dtype=np.float32), np.zeros(1, dtype=np.float32)
    inverse = np.zeros(2, dtype=np.int32)
    matrix, wide = np.zeros((1, 16), dtype=np.float32), np.zeros(1, dtype=np.float32)
    received = rows.copy()
    received.flags.writeable = False
    for looked_up in (rows, received):
        gather_fields(looked_up, inverse, 2, matrix)
        gather_wide_deep(looked_up, bias, inverse, 2, matrix, wide)
    scatter_fields(matrix, inverse, 2, rows)
    scatter_wide_deep(matrix, wide, inverse, 2, rows)
