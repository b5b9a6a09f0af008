"""Reads and updates rows of a slab, in which a row and its optimizer slots lie side by side.

A slab is float32 [rows, width * (1 + slots)]; columns ``[0, width)`` are the value and column
``width * (1 + s) + j`` is slot ``s`` of value ``j``. A row is contiguous, so an update waits for
memory once. Row ids are global; ``row_start`` is the first row of the slab. Division by zero gives
infinity (``error_model="numpy"``), because checks would keep loops from vectorising. Each rule is
written once for both numbers and vectors, since rows are too short for the compiler to vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import FLOAT_BYTES, ROWS_AHEAD, prefetch_row
from pstrain.kernels.vectors import (
    LANES,
    WIDE_LANES,
    broadcast,
    broadcast_wide,
    load,
    load_wide,
    sqrt,
    store,
)

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@njit(nogil=True, cache=True)
def first_outside(ids: I64, row_start: int, row_stop: int) -> int:
    """Returns the position of the first id outside ``[row_start, row_stop)``, or -1."""
    outside: Any = 0
    for position in range(ids.size):
        outside |= (ids[position] < row_start) | (ids[position] >= row_stop)
    if outside:
        for position in range(ids.size):
            if ids[position] < row_start or ids[position] >= row_stop:
                return position
    return -1


@njit(nogil=True, cache=True)
def gather_rows(slab: F32, width: int, row_start: int, ids: I64, out: F32) -> None:
    """Copies the values of rows ``ids`` into ``out`` [n, width]. Ids must be in range."""
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, width * FLOAT_BYTES)
        row = ids[position] - row_start
        column = 0
        while column + LANES <= width:
            store(out, position, column, load(slab, row, column))
            column += LANES
        while column < width:
            out[position, column] = slab[row, column]
            column += 1


@njit(nogil=True, cache=True)
def move_rows(old: F32, width: int, firsts: F32, new: F32) -> None:
    """Copies the values of ``old`` to ``new``, and adds ``firsts`` to every row as new slots."""
    for row in range(new.shape[0]):
        for column in range(width):
            new[row, column] = old[row, column]
        for column in range(firsts.size):
            new[row, width + column] = firsts[column]


@njit(nogil=True, cache=True)
def _sgd(value: Any, gradient: Any, rate: Any, l2: Any) -> Any:
    return value - rate * (gradient + l2 * value)


@njit(nogil=True, cache=True, error_model="numpy")
def sgd_rows(slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32) -> None:
    """``value -= learning_rate * (gradient + l2 * value)``; ``hyper`` is [learning_rate, l2]."""
    rate, l2 = hyper[0], hyper[1]
    rates, l2s = broadcast(rate), broadcast(l2)
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, width * FLOAT_BYTES)
        row = ids[position] - row_start
        column = 0
        while column + LANES <= width:
            g = load(gradients, position, column)
            store(slab, row, column, _sgd(load(slab, row, column), g, rates, l2s))
            column += LANES
        while column < width:
            slab[row, column] = _sgd(slab[row, column], gradients[position, column], rate, l2)
            column += 1


@njit(nogil=True, cache=True, error_model="numpy")
def sgd_all(slab: F32, width: int, gradients: F32, hyper: F32) -> None:
    """Does :func:`sgd_rows` for every row; ``gradients`` [rows, width]."""
    rate, l2 = hyper[0], hyper[1]
    for index in range(slab.shape[0]):
        row = slab[index]
        gradient = gradients[index]
        for column in range(width):
            row[column] -= rate * (gradient[column] + l2 * row[column])


@njit(nogil=True, cache=True, error_model="numpy")
def _adagrad(value: Any, squares: Any, gradient: Any, rate: Any, l2: Any, epsilon: Any) -> Any:
    g = gradient + l2 * value
    a = squares + g * g
    return value - rate * g / sqrt(a + epsilon), a


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """Adagrad on rows ``ids``: slot 0 sums squares; ``hyper`` is [learning_rate, l2, epsilon].

    ``a += g * g; value -= learning_rate * g / sqrt(a + epsilon)`` (Duchi et al. 2011, with the
    epsilon inside the root as in Keras).
    """
    rate, l2, epsilon = hyper[0], hyper[1], hyper[2]
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = ids[position] - row_start
        column = 0
        # A whole cache line at a time, so that the wait for it happens once, not for each half.
        while column + WIDE_LANES <= width:
            line, squares = load_wide(slab, row, column), load_wide(slab, row, width + column)
            g = load_wide(gradients, position, column)
            wide_rate, wide_l2 = broadcast_wide(rate), broadcast_wide(l2)
            line, squares = _adagrad(line, squares, g, wide_rate, wide_l2, broadcast_wide(epsilon))
            store(slab, row, column, line)
            store(slab, row, width + column, squares)
            column += WIDE_LANES
        if column + LANES <= width:
            values, sums = load(slab, row, column), load(slab, row, width + column)
            some = load(gradients, position, column)
            values, sums = _adagrad(
                values, sums, some, broadcast(rate), broadcast(l2), broadcast(epsilon)
            )
            store(slab, row, column, values)
            store(slab, row, width + column, sums)
            column += LANES
        while column < width:
            kept, gradient = slab[row, width + column], gradients[position, column]
            value, a = _adagrad(slab[row, column], kept, gradient, rate, l2, epsilon)
            slab[row, column] = value
            slab[row, width + column] = a
            column += 1


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_all(slab: F32, width: int, gradients: F32, hyper: F32) -> None:
    """Does :func:`adagrad_rows` for every row; ``gradients`` [rows, width]."""
    rate, l2, epsilon = hyper[0], hyper[1], hyper[2]
    for row in range(slab.shape[0]):
        for column in range(width):
            g = gradients[row, column] + l2 * slab[row, column]
            a = slab[row, width + column] + g * g
            slab[row, width + column] = a
            slab[row, column] -= rate * g / np.sqrt(a + epsilon)


def warm_up() -> None:
    """Compiles for writable gradients, made here, and for read-only ones, received."""
    slab, ids = np.zeros((1, 2), np.float32), np.zeros(1, np.int64)
    gradients, hyper = np.zeros((1, 1), np.float32), np.ones(3, np.float32)
    move_rows(gradients, 1, hyper[:1], slab)
    received, received_ids = gradients.copy(), ids.copy()
    received.flags.writeable = False
    received_ids.flags.writeable = False
    for rows, values in ((ids, gradients), (received_ids, received)):
        first_outside(rows, 0, 1)
        gather_rows(slab, 1, 0, rows, gradients)
        for one in (sgd_rows, adagrad_rows):
            one(slab, 1, 0, rows, values, hyper)
        for whole in (sgd_all, adagrad_all):
            whole(slab, 1, values, hyper)
