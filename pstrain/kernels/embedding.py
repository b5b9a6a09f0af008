"""Looked-up rows into the matrix a network reads, and its gradient back onto the rows.

``inverse`` (int32 [n * fields]) says which row each id of each example has, as in ``Lookup``.
Invariant: only the columns named are written; the caller's other columns stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def gather_fields(rows: Array, inverse: Array, fields: int, out: Array) -> None:
    """out[i, f * dim : (f + 1) * dim] = rows[inverse[i * fields + f]]; rows [U, dim]."""
    dim = rows.shape[1]
    for i in range(out.shape[0]):
        for f in range(fields):
            row = inverse[i * fields + f]
            for k in range(dim):
                out[i, f * dim + k] = rows[row, k]


@njit(nogil=True, cache=True)
def scatter_fields(gradient: Array, inverse: Array, fields: int, out: Array) -> None:
    """Adds gradient[i, f * dim : (f + 1) * dim] to out[inverse[i * fields + f]]; out [U, dim]."""
    dim = out.shape[1]
    for i in range(gradient.shape[0]):
        for f in range(fields):
            row = inverse[i * fields + f]
            for k in range(dim):
                out[row, k] += gradient[i, f * dim + k]


@njit(nogil=True, cache=True)
def gather_wide_deep(
    rows: Array, bias: Array, inverse: Array, fields: int, out: Array, wide: Array
) -> None:
    """Bias and column 0 of each row summed per example into ``wide``, the rest into ``out``.

    rows float32 [U, 1 + dim]; bias float32 [1]; out float32 [n, >= fields * dim]; wide float32 [n].
    """
    dim = rows.shape[1] - 1
    for i in range(wide.shape[0]):
        total = bias[0]
        for f in range(fields):
            row = inverse[i * fields + f]
            total += rows[row, 0]
            for k in range(dim):
                out[i, f * dim + k] = rows[row, 1 + k]
        wide[i] = total


@njit(nogil=True, cache=True)
def scatter_wide_deep(
    gradient: Array, wide_gradient: Array, inverse: Array, fields: int, out: Array
) -> None:
    """Adds the gradients of :func:`gather_wide_deep` to ``out``, float32 [U, 1 + dim]."""
    dim = out.shape[1] - 1
    for i in range(wide_gradient.shape[0]):
        wide = wide_gradient[i]
        for f in range(fields):
            row = inverse[i * fields + f]
            out[row, 0] += wide
            for k in range(dim):
                out[row, 1 + k] += gradient[i, f * dim + k]


def warm_up() -> None:
    """Compiles for float32 rows, gathered here or received, which makes them read-only."""
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
