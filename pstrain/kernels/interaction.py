"""Products of the vectors of one example with each other, and their gradients.

A row of ``vectors`` (float32 [n, >= count * dim]) begins with ``count`` vectors of ``dim`` values;
further columns are left alone. Sums may be taken in another order than written, which lets loops
vectorise; NaN and infinity keep their meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

_REORDER = {"reassoc", "contract", "nsz"}


@njit(nogil=True, cache=True, fastmath=_REORDER)
def pair_sums(vectors: Array, count: int, sums: Array, out: Array) -> None:
    """out[i] = the sum of all products <v_f, v_g>, f < g; ``sums`` [n, dim] gets the sum of v_f.

    By ``(sum of v)^2 - sum of v^2`` in time linear in ``count`` (Rendle 2010, lemma 3.1).
    """
    dim = sums.shape[1]
    for i in range(out.shape[0]):
        squares = np.float32(0)
        for k in range(dim):
            sums[i, k] = 0
        for f in range(count):
            for k in range(dim):
                value = vectors[i, f * dim + k]
                sums[i, k] += value
                squares += value * value
        total = np.float32(0)
        for k in range(dim):
            total += sums[i, k] * sums[i, k]
        out[i] = np.float32(0.5) * (total - squares)


@njit(nogil=True, cache=True)
def pair_sums_gradient(
    gradient: Array, vectors: Array, count: int, sums: Array, out: Array
) -> None:
    """out[i, f * dim + k] = gradient[i] * (sums[i, k] - v_f[k]); further columns become 0."""
    dim = sums.shape[1]
    for i in range(out.shape[0]):
        g = gradient[i]
        for f in range(count):
            for k in range(dim):
                out[i, f * dim + k] = g * (sums[i, k] - vectors[i, f * dim + k])
        for column in range(count * dim, out.shape[1]):
            out[i, column] = 0


@njit(nogil=True, cache=True, fastmath=_REORDER)
def pair_dots(vectors: Array, count: int, dim: int, out: Array) -> None:
    """out[i] = <v_f, v_g> for f = 1, 2, ... and g < f, in this order; [n, count(count - 1)/2]."""
    for i in range(out.shape[0]):
        at = 0
        for f in range(1, count):
            for g in range(f):
                total = np.float32(0)
                for k in range(dim):
                    total += vectors[i, f * dim + k] * vectors[i, g * dim + k]
                out[i, at] = total
                at += 1


@njit(nogil=True, cache=True)
def pair_dots_gradient(gradient: Array, vectors: Array, count: int, dim: int, out: Array) -> None:
    """Gradient of :func:`pair_dots`; further columns of ``out`` become 0."""
    for i in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[i, column] = 0
        at = 0
        for f in range(1, count):
            for g in range(f):
                weight = gradient[i, at]
                at += 1
                for k in range(dim):
                    out[i, f * dim + k] += weight * vectors[i, g * dim + k]
                    out[i, g * dim + k] += weight * vectors[i, f * dim + k]


def warm_up() -> None:
    """Compiles for float32 matrices, whole ones and those with padded rows."""
    sums, out = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    dots, padded = np.zeros((1, 1), np.float32), np.zeros((1, 16), np.float32)
    for vectors in (padded[:, :4].copy(), padded[:, :4]):
        pair_sums(vectors, 2, sums, out)
        pair_sums_gradient(out, vectors, 2, sums, np.empty((1, 4), np.float32))
        pair_dots(vectors, 2, 2, dots)
        pair_dots_gradient(dots, vectors, 2, 2, np.empty((1, 4), np.float32))
