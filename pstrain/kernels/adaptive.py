"""Update rules beyond SGD and Adagrad: with moments or momentum in slots, or with row slots.

A row of a slab is [value (width) | slot 0 (width) | ... | row slots], as in ``updates``; ``hyper``
begins with [learning_rate, l2], and ``l2 * value`` is added to each gradient. Rows that are not in
``ids`` stay as they are, slots included ("lazy" rules). Gradients and ids must be read-only, so
that each rule is compiled once. Ids must be distinct and in range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import FLOAT_BYTES, ROWS_AHEAD, prefetch_row

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@njit(nogil=True, cache=True, error_model="numpy")
def momentum_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """``m = momentum * m - rate * g; value += m``, or with Nesterov ``momentum * m - rate * g``.

    ``hyper``: [learning_rate, l2, momentum, nesterov (0 or 1)]. This is the form that Keras uses.
    """
    rate, l2, momentum, nesterov = hyper[0], hyper[1], hyper[2], hyper[3]
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        for column in range(width):
            step = rate * (gradients[position, column] + l2 * row[column])
            velocity = momentum * row[width + column] - step
            row[width + column] = velocity
            if nesterov > 0:
                velocity = momentum * velocity - step
            row[column] += velocity


@njit(nogil=True, cache=True, error_model="numpy")
def rmsprop_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """``a = rho * a + (1 - rho) * g * g; value -= rate * g / sqrt(a + epsilon)`` (Hinton 2012).

    ``hyper``: [learning_rate, l2, rho, epsilon].
    """
    rate, l2, rho, epsilon = hyper[0], hyper[1], hyper[2], hyper[3]
    one = np.float32(1)
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        for column in range(width):
            g = gradients[position, column] + l2 * row[column]
            a = rho * row[width + column] + (one - rho) * g * g
            row[width + column] = a
            row[column] -= rate * g / np.sqrt(a + epsilon)


@njit(nogil=True, cache=True, error_model="numpy")
def rmsprop_momentum_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """:func:`rmsprop_rows` with momentum, kept in slot 1; ``hyper`` has momentum at its end."""
    rate, l2, rho, epsilon, momentum = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    one = np.float32(1)
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        for column in range(width):
            g = gradients[position, column] + l2 * row[column]
            a = rho * row[width + column] + (one - rho) * g * g
            row[width + column] = a
            step = momentum * row[2 * width + column] + rate * g / np.sqrt(a + epsilon)
            row[2 * width + column] = step
            row[column] -= step


@njit(nogil=True, cache=True, error_model="numpy")
def adam_rows(slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32) -> None:
    """Adam (Kingma and Ba 2015); slots: first and second moment; row slot: updates so far.

    ``hyper``: [learning_rate, l2, beta_1, beta_2, epsilon]. The bias correction of the moments uses
    the number of updates of the row itself. For a row that changes in every step this is Adam; for
    a rare row the moments are unbiased from its first update on.
    """
    rate, l2, beta_1, beta_2, epsilon = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    one = np.float32(1)
    count_at = 3 * width
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        count = row[count_at] + one
        row[count_at] = count
        root = np.sqrt(1.0 - np.float64(beta_2) ** np.float64(count))
        alpha = np.float32(rate * root / (1.0 - np.float64(beta_1) ** np.float64(count)))
        for column in range(width):
            g = gradients[position, column] + l2 * row[column]
            m = row[width + column]
            m += (g - m) * (one - beta_1)
            v = row[2 * width + column]
            v += (g * g - v) * (one - beta_2)
            row[width + column] = m
            row[2 * width + column] = v
            row[column] -= alpha * m / (np.sqrt(v) + epsilon)


@njit(nogil=True, cache=True, error_model="numpy")
def _raised(value: Any, power: Any) -> Any:
    """Returns ``value ** power``; the usual power, 0.5, takes the fast square root."""
    return np.sqrt(value) if power == np.float32(0.5) else value**power


@njit(nogil=True, cache=True, error_model="numpy")
def ftrl_rows(slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32) -> None:
    """FTRL-Proximal (McMahan et al. 2013), in the form Keras uses; slots: accumulator, linear.

    ``hyper``: [learning_rate, 0, power, l1, l2, l2_shrinkage, beta]. Its l2 is that of the rule
    itself, and is not added to the gradient.
    """
    rate, power, l1, l2 = hyper[0], hyper[2], hyper[3], hyper[4]
    shrinkage, beta = hyper[5], hyper[6]
    two = np.float32(2)
    base = two * (l2 + beta / (two * rate))
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        for column in range(width):
            value = row[column]
            g = gradients[position, column]
            old = row[width + column]
            new = old + g * g
            old_root, new_root = _raised(old, -power), _raised(new, -power)
            linear = row[2 * width + column] + g + two * shrinkage * value
            linear -= (new_root - old_root) / rate * value
            clipped = min(max(linear, -l1), l1)
            row[column] = (clipped - linear) / (new_root / rate + base)
            row[width + column] = new
            row[2 * width + column] = linear


@njit(nogil=True, cache=True, error_model="numpy")
def rowwise_adagrad_rows(
    slab: F32, width: int, row_start: int, ids: I64, gradients: F32, hyper: F32
) -> None:
    """Adagrad with one accumulator per row, the mean of the squares (as in FBGEMM).

    ``a += mean(g * g); value -= rate * g / (sqrt(a) + epsilon)``; ``hyper``: [learning_rate, l2,
    epsilon].
    """
    rate, l2, epsilon = hyper[0], hyper[1], hyper[2]
    for position in range(ids.size):
        ahead = ids[min(position + ROWS_AHEAD, ids.size - 1)] - row_start
        prefetch_row(slab, ahead, slab.shape[1] * FLOAT_BYTES)
        row = slab[np.uint64(ids[position] - row_start)]
        squares = np.float32(0)
        for column in range(width):
            g = gradients[position, column] + l2 * row[column]
            squares += g * g
        total = row[width] + squares / np.float32(width)
        row[width] = total
        scale = rate / (np.sqrt(total) + epsilon)
        for column in range(width):
            row[column] -= scale * (gradients[position, column] + l2 * row[column])


def warm_up() -> None:
    """Compiles for read-only gradients and ids, as shards pass them."""
    slab, ids = np.ones((1, 4), np.float32), np.zeros(1, np.int64)
    gradients, hyper = np.zeros((1, 1), np.float32), np.ones(7, np.float32)
    ids.flags.writeable = False
    gradients.flags.writeable = False
    for rule in (
        momentum_rows,
        rmsprop_rows,
        rmsprop_momentum_rows,
        adam_rows,
        ftrl_rows,
        rowwise_adagrad_rows,
    ):
        rule(slab, 1, 0, ids, gradients, hyper)
