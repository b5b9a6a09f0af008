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

from pstrain.kernels.prefetch import FLOAT_BYTES, LINE_BYTES, ROWS_AHEAD, prefetch
from pstrain.kernels.vectors import (
    FOUR_LANES,
    LANES,
    TWO_LANES,
    WIDE_LANES,
    WIDE_REGISTERS,
    load,
    load_broadcast,
    load_broadcast_wide,
    load_four,
    load_two,
    load_wide,
    plus,
    plus_product,
    store,
    store_four,
    store_two,
    zeros,
    zeros_wide,
)

Array = NDArray[Any]

_TILE = 64
_LINES_OF_FOUR = FLOAT_BYTES * FOUR_LANES // LINE_BYTES


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
                ahead = np.intp(examples[np.uint64(min(e + ROWS_AHEAD, last))])
                for line in range(_LINES_OF_FOUR):
                    prefetch(gradient, ahead, FLOAT_BYTES * c + LINE_BYTES * line)
                w0, w1, w2, w3 = load_four(gradient, examples[np.uint64(e)], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            store_four(out, t, c, t0, t1, t2, t3)
            c += FOUR_LANES
        while c < units:
            t0 = zeros_wide()
            for e in range(first, end):
                t0 = plus(t0, load_wide(gradient, examples[np.uint64(e)], c))
            store(out, t, c, t0)
            c += WIDE_LANES


@njit(nogil=True, cache=True)
def _take_examples(gradient: Array, examples: Array, first: int, out: Array) -> None:
    """out[t] = examples[first + t]; requests the gradients that the next call will be about."""
    line_ends, last = FLOAT_BYTES * gradient.shape[1], examples.size - 1
    for t in range(out.size):
        out[t] = examples[first + t]
        ahead = np.intp(examples[np.uint64(min(first + t + _TILE, last))])
        for offset in range(0, line_ends, LINE_BYTES):
            prefetch(gradient, ahead, offset)


@njit(nogil=True, cache=True)
def _times_transposed(
    source: Array, which: Array, count: int, transposed: Array, column: int, out: Array
) -> None:
    """out[t] = source[which[t]] @ transposed[:, column : column + dim], for ``count`` rows."""
    dim = out.shape[1]
    for t in range(0, count, 8):
        s0, s1, s2, s3 = which[t], which[t + 1], which[t + 2], which[t + 3]
        s4, s5, s6, s7 = which[t + 4], which[t + 5], which[t + 6], which[t + 7]
        d = 0
        while WIDE_REGISTERS and d + WIDE_LANES <= dim:
            a0, a1, a2, a3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            a4, a5, a6, a7 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            for k in range(source.shape[1]):
                w = load_wide(transposed, k, column + d)
                a0 = plus_product(a0, load_broadcast_wide(source, s0, k), w)
                a1 = plus_product(a1, load_broadcast_wide(source, s1, k), w)
                a2 = plus_product(a2, load_broadcast_wide(source, s2, k), w)
                a3 = plus_product(a3, load_broadcast_wide(source, s3, k), w)
                a4 = plus_product(a4, load_broadcast_wide(source, s4, k), w)
                a5 = plus_product(a5, load_broadcast_wide(source, s5, k), w)
                a6 = plus_product(a6, load_broadcast_wide(source, s6, k), w)
                a7 = plus_product(a7, load_broadcast_wide(source, s7, k), w)
            store(out, t, d, a0)
            store(out, t + 1, d, a1)
            store(out, t + 2, d, a2)
            store(out, t + 3, d, a3)
            store(out, t + 4, d, a4)
            store(out, t + 5, d, a5)
            store(out, t + 6, d, a6)
            store(out, t + 7, d, a7)
            d += WIDE_LANES
        while d < dim:
            b0, b1, b2, b3 = zeros(), zeros(), zeros(), zeros()
            b4, b5, b6, b7 = zeros(), zeros(), zeros(), zeros()
            for k in range(source.shape[1]):
                v = load(transposed, k, column + d)
                b0 = plus_product(b0, load_broadcast(source, s0, k), v)
                b1 = plus_product(b1, load_broadcast(source, s1, k), v)
                b2 = plus_product(b2, load_broadcast(source, s2, k), v)
                b3 = plus_product(b3, load_broadcast(source, s3, k), v)
                b4 = plus_product(b4, load_broadcast(source, s4, k), v)
                b5 = plus_product(b5, load_broadcast(source, s5, k), v)
                b6 = plus_product(b6, load_broadcast(source, s6, k), v)
                b7 = plus_product(b7, load_broadcast(source, s7, k), v)
            store(out, t, d, b0)
            store(out, t + 1, d, b1)
            store(out, t + 2, d, b2)
            store(out, t + 3, d, b3)
            store(out, t + 4, d, b4)
            store(out, t + 5, d, b5)
            store(out, t + 6, d, b6)
            store(out, t + 7, d, b7)
            d += LANES


@njit(nogil=True, cache=True)
def add_outer_products(
    rows: Array, order: Array, column: int, source: Array, which: Array, out: Array, at: int
) -> None:
    """out[at + k] += sum over t of rows[order[t], column + k] * source[which[t]].

    Does so for all columns of ``rows`` from ``column`` on.
    """
    last = rows.shape[1] - column - 1
    for k in range(0, last + 1, 4):
        # Columns past the last one stand for the last one again.
        of = (
            column + k,
            column + min(k + 1, last),
            column + min(k + 2, last),
            column + min(k + 3, last),
        )
        c = 0
        while WIDE_REGISTERS and c + TWO_LANES <= source.shape[1]:
            _add_outer_two(rows, order, of, source, which, out, at - column, c)
            c += TWO_LANES
        while c < source.shape[1]:
            _add_outer_one(rows, order, of, source, which, out, at - column, c)
            c += WIDE_LANES


# Inlined, because a compiled function counts references to its arrays, and each call would wait for
# the count of the one before.
@njit(nogil=True, cache=True, inline="always")
def _add_outer_two(
    rows: Array, order: Array, of: Any, source: Array, which: Array, out: Array, shift: int, c: int
) -> None:
    """out[shift + k, c:] += what :func:`add_outer_products` adds, for four columns k of ``rows``.

    Adds to ``TWO_LANES`` columns: eight sums at a time keep the multipliers busy.
    """
    k0, k1, k2, k3 = of
    a0, b0 = load_two(out, shift + k0, c)
    a1, b1 = load_two(out, shift + k1, c)
    a2, b2 = load_two(out, shift + k2, c)
    a3, b3 = load_two(out, shift + k3, c)
    for t in range(order.size):
        r = order[np.uint64(t)]
        w, v = load_two(source, which[np.uint64(t)], c)
        x = load_broadcast_wide(rows, r, k0)
        a0, b0 = plus_product(a0, x, w), plus_product(b0, x, v)
        x = load_broadcast_wide(rows, r, k1)
        a1, b1 = plus_product(a1, x, w), plus_product(b1, x, v)
        x = load_broadcast_wide(rows, r, k2)
        a2, b2 = plus_product(a2, x, w), plus_product(b2, x, v)
        x = load_broadcast_wide(rows, r, k3)
        a3, b3 = plus_product(a3, x, w), plus_product(b3, x, v)
    store_two(out, shift + k0, c, a0, b0)
    store_two(out, shift + k1, c, a1, b1)
    store_two(out, shift + k2, c, a2, b2)
    store_two(out, shift + k3, c, a3, b3)


@njit(nogil=True, cache=True, inline="always")
def _add_outer_one(
    rows: Array, order: Array, of: Any, source: Array, which: Array, out: Array, shift: int, c: int
) -> None:
    """Does what :func:`_add_outer_two` does for ``WIDE_LANES`` columns."""
    k0, k1, k2, k3 = of
    a0, a1 = load_wide(out, shift + k0, c), load_wide(out, shift + k1, c)
    a2, a3 = load_wide(out, shift + k2, c), load_wide(out, shift + k3, c)
    for t in range(order.size):
        r = order[np.uint64(t)]
        w = load_wide(source, which[np.uint64(t)], c)
        a0 = plus_product(a0, load_broadcast_wide(rows, r, k0), w)
        a1 = plus_product(a1, load_broadcast_wide(rows, r, k1), w)
        a2 = plus_product(a2, load_broadcast_wide(rows, r, k2), w)
        a3 = plus_product(a3, load_broadcast_wide(rows, r, k3), w)
    store(out, shift + k0, c, a0)
    store(out, shift + k1, c, a1)
    store(out, shift + k2, c, a2)
    store(out, shift + k3, c, a3)


@njit(nogil=True, cache=True)
def _store_gradients(
    to_embedded: Array, order: Array, skipped: int, each_once: bool, to_rows: Array
) -> None:
    """to_rows[order[t], skipped:] += to_embedded[t], or = if ``each_once``, with 0 before it."""
    for t in range(order.size):
        row = order[t]
        if each_once:
            for c in range(skipped):
                to_rows[row, c] = 0
        for d in range(0, to_embedded.shape[1], LANES):
            total = load(to_embedded, t, d)
            if not each_once:
                total = plus(load(to_rows, row, skipped + d), total)
            store(to_rows, row, skipped + d, total)


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
    sums, to_embedded = (
        np.zeros((_TILE, gradient.shape[1]), np.float32),
        np.empty((_TILE, dim), np.float32),
    )
    every, alone = np.arange(_TILE).astype(np.int32), np.zeros(_TILE, np.int32)
    repeated = 1
    for f in range(middles.size):
        column = f * dim
        for begin in range(starts[f], middles[f], _TILE):
            those = order[begin : min(begin + _TILE, middles[f])]
            _sum_examples(gradient, examples, firsts, ends, repeated, sums[: those.size])
            repeated += those.size
            _times_transposed(sums, every, those.size, transposed, column, to_embedded)
            _store_gradients(to_embedded, those, skipped, each_once, to_rows)
            add_outer_products(rows, those, skipped, sums, every, to_kernel, column)
        shift = (f + 1) * size - starts[f + 1]
        for begin in range(middles[f], starts[f + 1], _TILE):
            those = order[begin : min(begin + _TILE, starts[f + 1])]
            # Places past the last row keep examples of an earlier tile, of which nothing is used.
            _take_examples(gradient, examples, shift + begin, alone[: those.size])
            _times_transposed(gradient, alone, those.size, transposed, column, to_embedded)
            _store_gradients(to_embedded, those, skipped, each_once, to_rows)
            add_outer_products(rows, those, skipped, gradient, alone, to_kernel, column)


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
    add_outer_products(dense, order, 0, gradient, order, to_kernel, LANES)
    add_wide_gradient(np.zeros(1, np.float32), *grouped, to_rows)
