"""The parts of a cross layer around its matrix products, each in one pass over the batch.

The rows of matrices are contiguous and may be padded; float32 throughout. Knows no model.
Invariant: only as many columns as ``projected`` has are used; further columns of other matrices are
neither read nor written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.vectors import LANES, broadcast, load, plus, plus_product, store

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def cross(first: Array, projected: Array, bias: Array, last: Array, out: Array) -> None:
    """out = first * (projected + bias) + last; adds ``bias`` [1, columns] to ``projected``, too."""
    columns = projected.shape[1]
    for i in range(projected.shape[0]):
        c = 0
        while c + LANES <= columns:
            weights = plus(load(projected, i, c), load(bias, 0, c))
            store(projected, i, c, weights)
            store(out, i, c, plus_product(load(last, i, c), load(first, i, c), weights))
            c += LANES
        while c < columns:
            weight = projected[i, c] + bias[0, c]
            projected[i, c] = weight
            out[i, c] = first[i, c] * weight + last[i, c]
            c += 1


@njit(nogil=True, cache=True)
def cross_gradient(
    gradient: Array,
    first: Array,
    projected: Array,
    passed_on: np.float32,
    to_projected: Array,
    to_first: Array,
    to_bias: Array,
) -> None:
    """Computes gradients of :func:`cross`; ``projected`` includes the bias; adds to ``to_bias``.

    ``to_first`` includes ``passed_on`` times the gradient: 1 if ``last`` is ``first``, else 0.
    """
    columns = projected.shape[1]
    for i in range(projected.shape[0]):
        c = 0
        while c + LANES <= columns:
            g = load(gradient, i, c)
            product = g * load(first, i, c)
            store(to_projected, i, c, product)
            store(to_bias, 0, c, plus(load(to_bias, 0, c), product))
            weights = plus(load(projected, i, c), broadcast(passed_on))
            store(to_first, i, c, g * weights)
            c += LANES
        while c < columns:
            one = gradient[i, c]
            scalar = one * first[i, c]
            to_projected[i, c] = scalar
            to_bias[0, c] += scalar
            to_first[i, c] = one * (projected[i, c] + passed_on)
            c += 1


def warm_up() -> None:
    """Compiles for contiguous and padded matrices, and for read-only biases."""
    whole, padded = np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)[:, :2]
    bias = np.zeros((1, 2), np.float32)
    bias.flags.writeable = False
    for first in (whole, padded):
        for last in (whole, padded):
            cross(first, whole, bias, last, whole.copy())
        cross_gradient(whole, first, whole, np.float32(1), whole, whole.copy(), whole.copy())
