"""Products of all pairs of vectors of one example, and their gradients.

A row of ``vectors`` (float32 [n, >= count * dim]) begins with ``count`` vectors of ``dim`` values;
further columns are ignored. Sums may be computed in another order than written, so that loops
vectorise; NaN and infinity keep their meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.vectors import LANES, load, load_broadcast, plus_product, store, zeros

Array = NDArray[Any]

_REORDER = {"reassoc", "contract", "nsz"}
# The number of vectors whose sums are in registers at the same time.
_AT_ONCE = 4


@njit(nogil=True, cache=True)
def _store_rows(out: Array, column: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Stores four vectors in the first four rows."""
    store(out, 0, column, a)
    store(out, 1, column, b)
    store(out, 2, column, c)
    store(out, 3, column, d)


@njit(nogil=True, cache=True, fastmath=_REORDER)
def pair_sums(vectors: Array, count: int, sums: Array, out: Array) -> None:
    """out[i] = the sum of all products <v_f, v_g>, f < g; ``sums`` [n, dim] gets the sum of v_f.

    Uses ``(sum of v)^2 - sum of v^2``, in time linear in ``count`` (Rendle 2010, lemma 3.1).
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


@njit(nogil=True, cache=True)
def pair_dots(vectors: Array, count: int, dim: int, out: Array) -> None:
    """out[i] = <v_f, v_g> for f = 1, 2, ... and g < f, in this order; [n, count(count - 1)/2].

    The rows of ``vectors``, float32, must be contiguous.
    """
    columns = np.zeros((dim, count + LANES), np.float32)
    found = np.empty((_AT_ONCE, count + LANES), np.float32)
    for i in range(out.shape[0]):
        for f in range(count):
            for k in range(dim):
                columns[k, f] = vectors[i, f * dim + k]
        at = 0
        for first in range(0, count, _AT_ONCE):
            last = min(first + _AT_ONCE, count) - 1
            # Vectors past the last one stand for the last one again, and their sums are not used.
            f0, f1 = first * dim, min(first + 1, last) * dim
            f2, f3 = min(first + 2, last) * dim, last * dim
            for g in range(0, last, LANES):
                t0, t1, t2, t3 = zeros(), zeros(), zeros(), zeros()
                for k in range(dim):
                    column = load(columns, k, g)
                    t0 = plus_product(t0, load_broadcast(vectors, i, f0 + k), column)
                    t1 = plus_product(t1, load_broadcast(vectors, i, f1 + k), column)
                    t2 = plus_product(t2, load_broadcast(vectors, i, f2 + k), column)
                    t3 = plus_product(t3, load_broadcast(vectors, i, f3 + k), column)
                _store_rows(found, g, t0, t1, t2, t3)
            for f in range(first, last + 1):
                for g in range(f):
                    out[i, at + g] = found[f - first, g]
                at += f


@njit(nogil=True, cache=True)
def pair_dots_gradient(gradient: Array, vectors: Array, count: int, dim: int, out: Array) -> None:
    """Computes the gradient of :func:`pair_dots`; sets further columns of ``out`` to 0."""
    weights = np.zeros((count + _AT_ONCE, count), np.float32)
    found = np.empty((_AT_ONCE, LANES), np.float32)
    for i in range(out.shape[0]):
        at = 0
        for f in range(1, count):
            for g in range(f):
                weights[f, g] = weights[g, f] = gradient[i, at]
                at += 1
        for first in range(0, count, _AT_ONCE):
            column = 0
            while column + LANES <= dim:
                t0, t1, t2, t3 = zeros(), zeros(), zeros(), zeros()
                for g in range(count):
                    vector = load(vectors, i, g * dim + column)
                    t0 = plus_product(t0, load_broadcast(weights, first, g), vector)
                    t1 = plus_product(t1, load_broadcast(weights, first + 1, g), vector)
                    t2 = plus_product(t2, load_broadcast(weights, first + 2, g), vector)
                    t3 = plus_product(t3, load_broadcast(weights, first + 3, g), vector)
                _store_rows(found, 0, t0, t1, t2, t3)
                for f in range(first, min(first + _AT_ONCE, count)):
                    store(out, i, f * dim + column, load(found, f - first, 0))
                column += LANES
            for f in range(first, min(first + _AT_ONCE, count)):
                for k in range(column, dim):
                    total = np.float32(0)
                    for g in range(count):
                        total += weights[f, g] * vectors[i, g * dim + k]
                    out[i, f * dim + k] = total
        for column in range(count * dim, out.shape[1]):
            out[i, column] = 0


def warm_up() -> None:
    """Compiles for float32 matrices, contiguous ones and ones with padded rows."""
    sums, out = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    dots, padded = np.zeros((1, 1), np.float32), np.zeros((1, 16), np.float32)
    for vectors in (padded[:, :4].copy(), padded[:, :4]):
        pair_sums(vectors, 2, sums, out)
        pair_sums_gradient(out, vectors, 2, sums, np.empty((1, 4), np.float32))
        pair_dots(vectors, 2, 2, dots)
        pair_dots_gradient(dots, vectors, 2, 2, np.empty((1, 4), np.float32))
