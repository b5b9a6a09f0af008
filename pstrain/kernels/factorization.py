"""Products of all pairs of an example's looked-up vectors, without copying the vectors together.

A row is [weight, vector]. The products of all pairs of vectors ``v`` sum to
``(|sum of v|^2 - sum of |v|^2) / 2`` (Rendle 2010, lemma 3.1), so an example needs one sum of
vectors and one number. Rows are grouped as in ``fields``, and each is read once, for all examples
that have it. Sums may be computed in another order than written. Knows no model. Invariant: float32
throughout; ``sums`` and ``weighted`` are contiguous matrices [n, dim]; gradients are added to the
target, unless the caller says that each row appears only once and is not shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.vectors import (
    LANES,
    WIDE_LANES,
    broadcast,
    broadcast_wide,
    load,
    load_wide,
    plus,
    plus_product,
    store,
    zeros,
    zeros_wide,
)

Array = NDArray[Any]

_REORDER = {"reassoc", "contract", "nsz"}


@njit(nogil=True, cache=True, fastmath=_REORDER)
def _own_part(rows: Array, row: int) -> np.float32:
    """Returns the weight of a row, minus half the square of its vector."""
    squares = np.float32(0)
    for k in range(1, rows.shape[1]):
        squares += rows[row, k] * rows[row, k]
    return rows[row, 0] - np.float32(0.5) * squares


# Inlined: a call with array arguments counts references to them, and so each row would wait for the
# one before.
@njit(nogil=True, cache=True, inline="always")
def _add_vector(rows: Array, row: int, examples: Array, of: Any, sums: Array, out: Array) -> None:
    """Adds a row to the sums of its examples, ``examples[of[0] : of[1]]``."""
    part, column = _own_part(rows, row), 0
    for e in range(of[0], of[1]):
        out[np.uint64(examples[e])] += part
    while column + WIDE_LANES <= sums.shape[1]:
        wide = load_wide(rows, row, 1 + column)
        for e in range(of[0], of[1]):
            store(sums, examples[e], column, plus(load_wide(sums, examples[e], column), wide))
        column += WIDE_LANES
    if column + LANES <= sums.shape[1]:
        some = load(rows, row, 1 + column)
        for e in range(of[0], of[1]):
            store(sums, examples[e], column, plus(load(sums, examples[e], column), some))
        column += LANES
    while column < sums.shape[1]:
        for e in range(of[0], of[1]):
            sums[np.uint64(examples[e]), column] += rows[row, 1 + column]
        column += 1


@njit(nogil=True, cache=True)
def add_vectors(
    rows: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
    sums: Array,
    out: Array,
) -> None:
    """sums[i] += its rows' vectors; out[i] += their weights, minus half the vectors' squares."""
    repeated = 0
    for f in range(middles.size):
        shift = (f + 1) * out.size - starts[f + 1]
        for s in range(starts[f], starts[f + 1]):
            first, end = np.intp(s + shift), np.intp(s + shift + 1)
            if s < middles[f]:
                repeated += 1
                first, end = np.intp(firsts[repeated]), np.intp(ends[repeated])
            _add_vector(rows, order[s], examples, (first, end), sums, out)


@njit(nogil=True, cache=True, fastmath=_REORDER)
def add_half_squares(sums: Array, out: Array) -> None:
    """out[i] += half the square of sums[i]."""
    for i in range(sums.shape[0]):
        squares = np.float32(0)
        for k in range(sums.shape[1]):
            squares += sums[i, k] * sums[i, k]
        out[i] += np.float32(0.5) * squares


@njit(nogil=True, cache=True)
def weigh(gradient: Array, sums: Array, out: Array) -> None:
    """out[i] = gradient[i] * sums[i]."""
    for i in range(sums.shape[0]):
        for k in range(sums.shape[1]):
            out[i, k] = gradient[i] * sums[i, k]


@njit(nogil=True, cache=True, inline="always")
def _vector_gradient(
    gradient: Array,
    weighted: Array,
    rows: Array,
    row: int,
    examples: Array,
    of: Any,
    to_rows: Array,
    each_once: bool,
) -> None:
    """Computes the gradient of a row: ``weighted - gradient * vector``, summed over its examples.

    Column 0, the weight, gets the sum of ``gradient``.
    """
    total, dim, column = np.float32(0), weighted.shape[1], 0
    for e in range(of[0], of[1]):
        total += gradient[np.uint64(examples[e])]
    to_rows[row, 0] = total if each_once else to_rows[row, 0] + total
    while column + WIDE_LANES <= dim:
        wide = zeros_wide() if each_once else load_wide(to_rows, row, 1 + column)
        for e in range(of[0], of[1]):
            wide = plus(wide, load_wide(weighted, examples[e], column))
        wide = plus_product(wide, broadcast_wide(-total), load_wide(rows, row, 1 + column))
        store(to_rows, row, 1 + column, wide)
        column += WIDE_LANES
    if column + LANES <= dim:
        some = zeros() if each_once else load(to_rows, row, 1 + column)
        for e in range(of[0], of[1]):
            some = plus(some, load(weighted, examples[e], column))
        some = plus_product(some, broadcast(-total), load(rows, row, 1 + column))
        store(to_rows, row, 1 + column, some)
        column += LANES
    while column < dim:
        one = np.float32(0) if each_once else to_rows[row, 1 + column]
        for e in range(of[0], of[1]):
            one += weighted[np.uint64(examples[e]), column]
        to_rows[row, 1 + column] = one - total * rows[row, 1 + column]
        column += 1


@njit(nogil=True, cache=True)
def vectors_gradient(
    gradient: Array,
    weighted: Array,
    rows: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
    to_rows: Array,
    each_once: bool,
) -> None:
    """Adds to ``to_rows`` the gradient of :func:`add_vectors` and :func:`add_half_squares`.

    ``weighted`` is the result of :func:`weigh`. ``each_once`` means that ``order`` has every row
    once; ``to_rows`` is then overwritten instead of added to.
    """
    repeated = 0
    for f in range(middles.size):
        shift = (f + 1) * gradient.size - starts[f + 1]
        for s in range(starts[f], starts[f + 1]):
            first, end = np.intp(s + shift), np.intp(s + shift + 1)
            if s < middles[f]:
                repeated += 1
                first, end = np.intp(firsts[repeated]), np.intp(ends[repeated])
            of = (first, end)
            _vector_gradient(gradient, weighted, rows, order[s], examples, of, to_rows, each_once)


def warm_up() -> None:
    """Compiles for read-only rows."""
    order, starts, middles = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(1, np.int64)
    rows, sums, one = np.zeros((1, 2), "f4"), np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    to_rows = rows.copy()
    rows.flags.writeable = False
    grouped = (order, starts, middles, order, order, order)
    add_vectors(rows, *grouped, sums, one)
    add_half_squares(sums, one)
    weigh(one, sums, sums)
    vectors_gradient(one, sums, rows, *grouped, to_rows, True)
