"""Gradients of ``projection``: for rows, for the kernel, and for the sums of column 0.

Rows are grouped as in ``projection``, and the same sizes are required. A few rows are handled at a
time, so that the values between two products stay in the first-level cache. Knows no model.
Invariant: gradients are added to the target, so that several layers can share rows, unless the
caller says that each row appears only once and is not shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import LINE_BYTES, ROWS_AHEAD, prefetch
from pstrain.kernels.vectors import (
    FOUR_LANES,
    LANES,
    WIDE_LANES,
    load,
    load_broadcast,
    load_broadcast_wide,
    load_four,
    load_wide,
    plus,
    plus_product,
    store,
    store_four,
    zeros,
    zeros_wide,
)

Array = NDArray[Any]

_TILE = 32


@njit(nogil=True, cache=True)
def add_wide_gradient(
    gradient: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
    to_rows: Array,
) -> None:
    """Adds the gradient of :func:`projection.add_wide` to column 0 of ``to_rows``."""
    repeated = 0
    for f in range(middles.size):
        for s in range(starts[f], middles[f]):
            repeated += 1
            total = np.float32(0)
            for e in range(firsts[repeated], ends[repeated]):
                total += gradient[np.uint64(examples[e])]
            to_rows[np.uint64(order[s]), 0] += total
        shift = (f + 1) * gradient.size - starts[f + 1]
        for s in range(middles[f], starts[f + 1]):
            to_rows[np.uint64(order[s]), 0] += gradient[np.uint64(examples[s + shift])]


@njit(nogil=True, cache=True)
def _sum_examples(
    gradient: Array, examples: Array, firsts: Array, ends: Array, repeated: int, out: Array
) -> None:
    """out[t] = sum of gradient[i] over the examples i of repeating id ``repeated + t``."""
    units, last = out.shape[1], examples.size - 1
    for t in range(out.shape[0]):
        first, end = firsts[repeated + t], ends[repeated + t]
        c = 0
        while c + FOUR_LANES <= units:
            t0, t1, t2, t3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            for e in range(first, end):
                if c == 0:
                    ahead = np.intp(examples[min(e + ROWS_AHEAD, last)])
                    for offset in range(0, 4 * units, LINE_BYTES):
                        prefetch(gradient, ahead, offset)
                w0, w1, w2, w3 = load_four(gradient, examples[e], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            store_four(out, t, c, t0, t1, t2, t3)
            c += FOUR_LANES
        while c < units:
            t0 = zeros_wide()
            for e in range(first, end):
                t0 = plus(t0, load_wide(gradient, examples[e], c))
            store(out, t, c, t0)
            c += WIDE_LANES


@njit(nogil=True, cache=True)
def _take_examples(gradient: Array, examples: Array, first: int, out: Array) -> None:
    """out[t] = gradient[examples[first + t]]."""
    units, last = out.shape[1], examples.size - 1
    for t in range(out.shape[0]):
        ahead = np.intp(examples[min(first + t + ROWS_AHEAD, last)])
        for offset in range(0, 4 * units, LINE_BYTES):
            prefetch(gradient, ahead, offset)
        for c in range(0, units, WIDE_LANES):
            store(out, t, c, load_wide(gradient, examples[first + t], c))


@njit(nogil=True, cache=True)
def _times_transposed(tile: Array, count: int, transposed: Array, column: int, out: Array) -> None:
    """out[t] = tile[t] @ transposed[:, column : column + dim], for the first ``count`` rows."""
    dim = out.shape[1]
    for t in range(0, count, 8):
        d = 0
        while d + WIDE_LANES <= dim:
            a0, a1, a2, a3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            a4, a5, a6, a7 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            for k in range(tile.shape[1]):
                w = load_wide(transposed, k, column + d)
                a0 = plus_product(a0, load_broadcast_wide(tile, t, k), w)
                a1 = plus_product(a1, load_broadcast_wide(tile, t + 1, k), w)
                a2 = plus_product(a2, load_broadcast_wide(tile, t + 2, k), w)
                a3 = plus_product(a3, load_broadcast_wide(tile, t + 3, k), w)
                a4 = plus_product(a4, load_broadcast_wide(tile, t + 4, k), w)
                a5 = plus_product(a5, load_broadcast_wide(tile, t + 5, k), w)
                a6 = plus_product(a6, load_broadcast_wide(tile, t + 6, k), w)
                a7 = plus_product(a7, load_broadcast_wide(tile, t + 7, k), w)
            store(out, t, d, a0)
            store(out, t + 1, d, a1)
            store(out, t + 2, d, a2)
            store(out, t + 3, d, a3)
            store(out, t + 4, d, a4)
            store(out, t + 5, d, a5)
            store(out, t + 6, d, a6)
            store(out, t + 7, d, a7)
            d += WIDE_LANES
        if d < dim:
            for u in range(t, t + 8, 4):
                b0, b1, b2, b3 = zeros(), zeros(), zeros(), zeros()
                for k in range(tile.shape[1]):
                    v = load(transposed, k, column + d)
                    b0 = plus_product(b0, load_broadcast(tile, u, k), v)
                    b1 = plus_product(b1, load_broadcast(tile, u + 1, k), v)
                    b2 = plus_product(b2, load_broadcast(tile, u + 2, k), v)
                    b3 = plus_product(b3, load_broadcast(tile, u + 3, k), v)
                store(out, u, d, b0)
                store(out, u + 1, d, b1)
                store(out, u + 2, d, b2)
                store(out, u + 3, d, b3)


@njit(nogil=True, cache=True)
def add_outer_products(
    rows: Array, order: Array, column: int, other: Array, out: Array, at: int
) -> None:
    """out[at + k] += sum over t of rows[order[t], column + k] * other[t].

    Does so for all columns of ``rows`` from ``column`` on.
    """
    last = rows.shape[1] - column - 1
    for k in range(0, last + 1, 4):
        # Columns past the last one stand for the last one again.
        k1, k2, k3 = min(k + 1, last), min(k + 2, last), min(k + 3, last)
        for c in range(0, other.shape[1], WIDE_LANES):
            a0, a1 = load_wide(out, at + k, c), load_wide(out, at + k1, c)
            a2, a3 = load_wide(out, at + k2, c), load_wide(out, at + k3, c)
            for t in range(order.size):
                r = order[t]
                w = load_wide(other, t, c)
                a0 = plus_product(a0, load_broadcast_wide(rows, r, column + k), w)
                a1 = plus_product(a1, load_broadcast_wide(rows, r, column + k1), w)
                a2 = plus_product(a2, load_broadcast_wide(rows, r, column + k2), w)
                a3 = plus_product(a3, load_broadcast_wide(rows, r, column + k3), w)
            store(out, at + k, c, a0)
            store(out, at + k1, c, a1)
            store(out, at + k2, c, a2)
            store(out, at + k3, c, a3)


@njit(nogil=True, cache=True)
def project_gradients(
    gradient: Array,
    rows: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
    transposed: Array,
    to_rows: Array,
    to_kernel: Array,
    each_once: bool,
) -> None:
    """Adds the gradients of the projections to ``to_rows`` and to ``to_kernel``.

    ``transposed`` is the transpose of the kernel, ``gradient`` that of the hidden values
    [n, units]. ``each_once`` means that ``order`` has every row once; ``to_rows`` is then
    overwritten instead of added to.
    """
    skipped = rows.shape[1] & (LANES - 1)
    dim, size = rows.shape[1] - skipped, gradient.shape[0]
    tile = np.zeros((_TILE, gradient.shape[1]), np.float32)
    to_embedded = np.empty((_TILE, dim), np.float32)
    repeated = 1
    for f in range(middles.size):
        begin = starts[f]
        while begin < starts[f + 1]:
            if begin < middles[f]:
                end = min(begin + _TILE, middles[f])
                _sum_examples(gradient, examples, firsts, ends, repeated, tile[: end - begin])
                repeated += end - begin
            else:
                end = min(begin + _TILE, starts[f + 1])
                first = (f + 1) * size - starts[f + 1] + begin
                _take_examples(gradient, examples, first, tile[: end - begin])
            _times_transposed(tile, end - begin, transposed, f * dim, to_embedded)
            for s in range(begin, end):
                if each_once:
                    for c in range(skipped):
                        to_rows[order[s], c] = 0
                for d in range(0, dim, LANES):
                    at, total = skipped + d, load(to_embedded, s - begin, d)
                    if not each_once:
                        total = plus(load(to_rows, order[s], at), total)
                    store(to_rows, order[s], at, total)
            add_outer_products(rows, order[begin:end], skipped, tile, to_kernel, f * dim)
            begin = end


def warm_up() -> None:
    """Compiles for read-only rows and dense columns."""
    order = np.zeros(1, np.int32)
    starts, middles = np.zeros(2, np.int64), np.zeros(1, np.int64)
    rows, dense = np.zeros((1, LANES), np.float32), np.zeros((1, 1), np.float32)
    gradient = np.zeros((1, WIDE_LANES), np.float32)
    transposed = np.zeros((WIDE_LANES, LANES), np.float32)
    to_rows, to_kernel = rows.copy(), np.zeros((LANES + 1, WIDE_LANES), np.float32)
    for received in (rows, dense):
        received.flags.writeable = False
    grouped = (order, starts, middles, order, order, order)
    project_gradients(gradient, rows, *grouped, transposed, to_rows, to_kernel, True)
    add_outer_products(dense, order, 0, gradient, to_kernel, LANES)
    add_wide_gradient(np.zeros(1, np.float32), *grouped, to_rows)
