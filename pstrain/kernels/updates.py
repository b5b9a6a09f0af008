"""Reads and updates of the rows of a slab: a row and its optimizer slots side by side.

A slab is float32 [rows, width * (1 + slots)]; columns ``[0, width)`` are the value and column
``width * s + j`` is slot ``s`` of value ``j``. One row is one place in memory, so an update waits
for memory once. Row ids are global; ``row_start`` is the first one the slab holds. Division by
zero gives infinity here (``error_model="numpy"``): the check would keep loops from vectorising.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@njit(nogil=True, cache=True)
def first_outside(ids: I64, row_start: int, row_stop: int) -> int:
    """Position of the first id outside ``[row_start, row_stop)``, or -1."""
    for position in range(ids.size):
        if ids[position] < row_start or ids[position] >= row_stop:
            return position
    return -1


@njit(nogil=True, cache=True)
def gather_rows(slab: F32, width: int, row_start: int, ids: I64, out: F32) -> None:
    """Copies the values of rows ``ids`` into ``out`` [n, width]. Ids must be in range."""
    for position in range(ids.size):
        row = slab[np.uint64(ids[position] - row_start)]
        target = out[position]
        for column in range(width):
            target[column] = row[column]


@njit(nogil=True, cache=True, error_model="numpy")
def sgd_rows(slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32) -> None:
    """``value -= learning_rate * gradient`` for rows ``ids``; ``hyper`` is [learning_rate]."""
    rate = hyper[0]
    for position in range(ids.size):
        row = slab[np.uint64(ids[position] - row_start)]
        gradient = gradients[position]
        for column in range(width):
            row[column] -= rate * gradient[column]


@njit(nogil=True, cache=True, error_model="numpy")
def sgd_all(slab: F32, width: int, gradients: F32, hyper: F32) -> None:
    """:func:`sgd_rows` of every row; ``gradients`` [rows, width]."""
    rate = hyper[0]
    for index in range(slab.shape[0]):
        row = slab[index]
        gradient = gradients[index]
        for column in range(width):
            row[column] -= rate * gradient[column]


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """Adagrad of rows ``ids``: slot 0 sums squares; ``hyper`` is [learning_rate, epsilon].

    ``a += g * g; value -= learning_rate * g / sqrt(a + epsilon)`` (Duchi et al. 2011, with the
    epsilon inside the root as in Keras).
    """
    rate = hyper[0]
    epsilon = hyper[1]
    for position in range(ids.size):
        row = np.uint64(ids[position] - row_start)
        for column in range(width):
            g = gradients[position, column]
            a = slab[row, width + column] + g * g
            slab[row, width + column] = a
            slab[row, column] -= rate * g / np.sqrt(a + epsilon)


@njit(nogil=True, cache=True, error_model="numpy")
def adagrad_all(slab: F32, width: int, gradients: F32, hyper: F32) -> None:
    """:func:`adagrad_rows` of every row; ``gradients`` [rows, width]."""
    rate = hyper[0]
    epsilon = hyper[1]
    for row in range(slab.shape[0]):
        for column in range(width):
            g = gradients[row, column]
            a = slab[row, width + column] + g * g
            slab[row, width + column] = a
            slab[row, column] -= rate * g / np.sqrt(a + epsilon)
