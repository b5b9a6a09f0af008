"""Pools several rows into one: weighted sums over bags of values, and their gradients.

Bag ``b`` holds the values ``[offsets[b], offsets[b + 1])``; ``scales`` has the factor of each value
in its bag's sum, so that one kernel serves sum, mean and sqrtn. Knows no model. Invariant: an empty
bag gives zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

SUM, MEAN, SQRTN = 0, 1, 2


@njit(nogil=True, cache=True)
def scale_values(offsets: Array, weights: Array, rule: int, out: Array) -> None:
    """``out[j]`` (float32) = factor of value j in its bag; empty ``weights`` mean 1 each.

    SUM: the weight of the value; MEAN: the weight divided by the sum of the bag's weights; SQRTN:
    the weight divided by the square root of the sum of their squares. A bag whose divisor is 0
    counts as empty.
    """
    for b in range(len(offsets) - 1):
        start, stop = offsets[b], offsets[b + 1]
        total = 0.0
        for j in range(start, stop):
            weight = np.float64(weights[j]) if len(weights) else 1.0
            out[j] = weight
            total += weight * weight if rule == SQRTN else weight
        if rule != SUM:
            divisor = np.sqrt(total) if rule == SQRTN else total
            factor = 0.0 if divisor == 0.0 else 1.0 / divisor
            for j in range(start, stop):
                out[j] *= factor


@njit(nogil=True, cache=True)
def pool_rows(rows: Array, inverse: Array, offsets: Array, scales: Array, out: Array) -> None:
    """``out[b]`` = sum of ``scales[j] * rows[inverse[j]]`` over the values of bag b."""
    for b in range(len(offsets) - 1):
        for k in range(out.shape[1]):
            out[b, k] = 0
        for j in range(offsets[b], offsets[b + 1]):
            row = np.uint64(inverse[j])
            for k in range(out.shape[1]):
                out[b, k] += scales[j] * rows[row, k]


@njit(nogil=True, cache=True)
def pool_gradients(
    gradient: Array, inverse: Array, offsets: Array, scales: Array, out: Array
) -> None:
    """Adds the gradients of :func:`pool_rows`: ``out[inverse[j]] += scales[j] * gradient[b]``."""
    for b in range(len(offsets) - 1):
        for j in range(offsets[b], offsets[b + 1]):
            row = np.uint64(inverse[j])
            for k in range(out.shape[1]):
                out[row, k] += scales[j] * gradient[b, k]


@njit(nogil=True, cache=True)
def place_rows(single: Array, positions: Array, first: int, out: Array) -> None:
    """Sets ``out`` (int32 [n, fields]) to the row of each field of each example.

    Fields ``positions[f]`` have the rows ``single``, int32 [n * single fields]. The other fields,
    in order, have pooled rows: ``first`` + bag, with bags numbered field after field.
    """
    size = out.shape[0]
    is_single = np.zeros(out.shape[1], np.bool_)
    for f in range(len(positions)):
        is_single[positions[f]] = True
        for i in range(size):
            out[i, positions[f]] = single[i * len(positions) + f]
    bags = 0
    for field in range(out.shape[1]):
        if not is_single[field]:
            for i in range(size):
                out[i, field] = first + bags * size + i
            bags += 1


def warm_up() -> None:
    """Compiles for float32 rows: writable if gathered here, read-only if received."""
    offsets, inverse = np.array([0, 1], np.int64), np.zeros(1, np.int32)
    scales, rows = np.ones(1, np.float32), np.zeros((1, 1), np.float32)
    received = rows.copy()
    received.flags.writeable = False
    scale_values(offsets, np.ones(1, np.float32), MEAN, scales)
    for looked_up in (rows, received):
        pool_rows(looked_up, inverse, offsets, scales, rows.copy())
    pool_gradients(rows.copy(), inverse, offsets, scales, rows)
    place_rows(inverse, np.zeros(1, np.int64), 1, np.zeros((1, 2), np.int32))
