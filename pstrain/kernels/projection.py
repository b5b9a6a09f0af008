"""A dense layer over embeddings, worked out once per distinct id instead of once per occurrence.

With ids that repeat, ``sum over fields of embedding @ kernel_of_field`` is cheaper as: project each
distinct row, then add up projections. Rows are grouped as in ``fields``; ``order`` (int32) says
which row each of its distinct ids has, so a row that several fields have is there once for each.
What repeats is projected into an array of its own; what does not is added where it belongs at once.
Sums are kept in registers and products in the first-level cache. Invariant: float32 throughout; the
width of embeddings is a multiple of ``LANES``, that of the layer of ``COLUMNS``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import LINE_BYTES, ROWS_AHEAD, prefetch
from pstrain.kernels.vectors import (
    LANES,
    WIDE_LANES,
    load,
    load_wide,
    plus,
    plus_product,
    positive_part,
    spread,
    spread_wide,
    store,
    zeros,
    zeros_wide,
)

Array = NDArray[Any]

COLUMNS = WIDE_LANES
_TILE = 32
_16 = WIDE_LANES
_32 = 2 * WIDE_LANES
_48 = 3 * WIDE_LANES
_64 = 4 * WIDE_LANES


@njit(nogil=True, cache=True)
def _load4(array: Array, row: int, column: int) -> Any:
    """Four vectors side by side."""
    return (
        load_wide(array, row, column),
        load_wide(array, row, column + _16),
        load_wide(array, row, column + _32),
        load_wide(array, row, column + _48),
    )


@njit(nogil=True, cache=True)
def _put4(out: Array, row: int, column: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Four vectors side by side."""
    store(out, row, column, a)
    store(out, row, column + _16, b)
    store(out, row, column + _32, c)
    store(out, row, column + _48, d)


@njit(nogil=True, cache=True)
def begin_hidden(dense: Array, kernel: Array, bias: Array, hidden: Array) -> None:
    """hidden[i] = bias + dense[i] @ the kernel's last rows; ``bias`` is [1, units]."""
    values, units = dense.shape[1], hidden.shape[1]
    first = kernel.shape[0] - values
    for i in range(hidden.shape[0]):
        c = 0
        while c + _64 <= units:
            t0, t1, t2, t3 = _load4(bias, 0, c)
            for v in range(values):
                x = spread_wide(dense, i, v)
                w0, w1, w2, w3 = _load4(kernel, first + v, c)
                t0, t1 = plus_product(t0, x, w0), plus_product(t1, x, w1)
                t2, t3 = plus_product(t2, x, w2), plus_product(t3, x, w3)
            _put4(hidden, i, c, t0, t1, t2, t3)
            c += _64
        while c < units:
            t0 = load_wide(bias, 0, c)
            for v in range(values):
                w = load_wide(kernel, first + v, c)
                t0 = plus_product(t0, spread_wide(dense, i, v), w)
            store(hidden, i, c, t0)
            c += COLUMNS


@njit(nogil=True, cache=True)
def _add_products(
    out: Array, to: Any, rows: Array, of: Any, skipped: int, kernel: Array, at: int
) -> None:
    """Adds to rows ``to`` of ``out`` those ``of`` ``rows`` times the kernel from row ``at`` on.

    Four of each; the first ``skipped`` columns of ``rows`` do not count.
    """
    a, b, c, d = to
    e, f, g, h = of
    for column in range(0, out.shape[1], COLUMNS):
        t0, t1 = load_wide(out, a, column), load_wide(out, b, column)
        t2, t3 = load_wide(out, c, column), load_wide(out, d, column)
        for k in range(rows.shape[1] - skipped):
            w = load_wide(kernel, at + k, column)
            t0 = plus_product(t0, spread_wide(rows, e, skipped + k), w)
            t1 = plus_product(t1, spread_wide(rows, f, skipped + k), w)
            t2 = plus_product(t2, spread_wide(rows, g, skipped + k), w)
            t3 = plus_product(t3, spread_wide(rows, h, skipped + k), w)
        store(out, a, column, t0)
        store(out, b, column, t1)
        store(out, c, column, t2)
        store(out, d, column, t3)


@njit(nogil=True, cache=True)
def project_repeated(
    rows: Array, order: Array, starts: Array, middles: Array, kernel: Array, projected: Array
) -> None:
    """projected[r] = the last ``dim`` columns of the row of repeating id ``r`` @ its kernel.

    The first of ``projected`` is 0.
    """
    skipped = rows.shape[1] & (LANES - 1)
    dim = rows.shape[1] - skipped
    projected[:] = 0
    before = 1
    for f in range(middles.size):
        begin, last = starts[f], middles[f] - 1
        for s in range(begin, middles[f], 4):
            # The rows past a field's last are the last one again.
            s1, s2, s3 = min(s + 1, last), min(s + 2, last), min(s + 3, last)
            shift = before - begin
            to = (s + shift, s1 + shift, s2 + shift, s3 + shift)
            of = (order[s], order[s1], order[s2], order[s3])
            _add_products(projected, to, rows, of, skipped, kernel, f * dim)
        before += middles[f] - begin


@njit(nogil=True, cache=True)
def add_unrepeated(
    rows: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    kernel: Array,
    hidden: Array,
) -> None:
    """Adds to hidden[i] the projections of those rows that no other example has."""
    skipped = rows.shape[1] & (LANES - 1)
    dim, size = rows.shape[1] - skipped, hidden.shape[0]
    for f in range(middles.size):
        last = starts[f + 1] - 1
        shift = (f + 1) * size - starts[f + 1]
        for s in range(middles[f], starts[f + 1], 4):
            s1, s2, s3 = min(s + 1, last), min(s + 2, last), min(s + 3, last)
            e, e1 = examples[s + shift], examples[s1 + shift]
            to = (e, e1, examples[s2 + shift], examples[s3 + shift])
            of = (order[s], order[s1], order[s2], order[s3])
            _add_products(hidden, to, rows, of, skipped, kernel, f * dim)


@njit(nogil=True, cache=True)
def add_repeated(projected: Array, repeated: Array, hidden: Array) -> None:
    """hidden[i] = max(hidden[i] + the sum of its projections, 0)."""
    fields, units = repeated.shape[0], hidden.shape[1]
    for i in range(hidden.shape[0]):
        c = 0
        while c + _64 <= units:
            t0, t1, t2, t3 = _load4(hidden, i, c)
            for f in range(fields):
                w0, w1, w2, w3 = _load4(projected, repeated[f, i], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            t0, t1 = positive_part(t0), positive_part(t1)
            _put4(hidden, i, c, t0, t1, positive_part(t2), positive_part(t3))
            c += _64
        while c < units:
            t0 = load_wide(hidden, i, c)
            for f in range(fields):
                t0 = plus(t0, load_wide(projected, repeated[f, i], c))
            store(hidden, i, c, positive_part(t0))
            c += COLUMNS


@njit(nogil=True, cache=True)
def add_wide(
    rows: Array,
    order: Array,
    starts: Array,
    middles: Array,
    examples: Array,
    firsts: Array,
    ends: Array,
    wide: Array,
) -> None:
    """wide[i] += sum of column 0 of its rows."""
    repeated = 0
    for f in range(middles.size):
        for s in range(starts[f], middles[f]):
            repeated += 1
            weight = rows[np.uint64(order[s]), 0]
            for e in range(firsts[repeated], ends[repeated]):
                wide[np.uint64(examples[e])] += weight
        shift = (f + 1) * wide.size - starts[f + 1]
        for s in range(middles[f], starts[f + 1]):
            wide[np.uint64(examples[s + shift])] += rows[np.uint64(order[s]), 0]


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
    """Gradient of :func:`add_wide`: adds to column 0 of ``to_rows``."""
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
        while c + _64 <= units:
            t0, t1, t2, t3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            for e in range(first, end):
                if c == 0:
                    ahead = np.intp(examples[min(e + ROWS_AHEAD, last)])
                    for offset in range(0, 4 * units, LINE_BYTES):
                        prefetch(gradient, ahead, offset)
                w0, w1, w2, w3 = _load4(gradient, examples[e], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            _put4(out, t, c, t0, t1, t2, t3)
            c += _64
        while c < units:
            t0 = zeros_wide()
            for e in range(first, end):
                t0 = plus(t0, load_wide(gradient, examples[e], c))
            store(out, t, c, t0)
            c += COLUMNS


@njit(nogil=True, cache=True)
def _take_examples(gradient: Array, examples: Array, first: int, out: Array) -> None:
    """out[t] = gradient[examples[first + t]]."""
    units, last = out.shape[1], examples.size - 1
    for t in range(out.shape[0]):
        ahead = np.intp(examples[min(first + t + ROWS_AHEAD, last)])
        for offset in range(0, 4 * units, LINE_BYTES):
            prefetch(gradient, ahead, offset)
        for c in range(0, units, COLUMNS):
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
                a0 = plus_product(a0, spread_wide(tile, t, k), w)
                a1 = plus_product(a1, spread_wide(tile, t + 1, k), w)
                a2 = plus_product(a2, spread_wide(tile, t + 2, k), w)
                a3 = plus_product(a3, spread_wide(tile, t + 3, k), w)
                a4 = plus_product(a4, spread_wide(tile, t + 4, k), w)
                a5 = plus_product(a5, spread_wide(tile, t + 5, k), w)
                a6 = plus_product(a6, spread_wide(tile, t + 6, k), w)
                a7 = plus_product(a7, spread_wide(tile, t + 7, k), w)
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
                    b0 = plus_product(b0, spread(tile, u, k), v)
                    b1 = plus_product(b1, spread(tile, u + 1, k), v)
                    b2 = plus_product(b2, spread(tile, u + 2, k), v)
                    b3 = plus_product(b3, spread(tile, u + 3, k), v)
                store(out, u, d, b0)
                store(out, u + 1, d, b1)
                store(out, u + 2, d, b2)
                store(out, u + 3, d, b3)


@njit(nogil=True, cache=True)
def add_outer_products(
    rows: Array, order: Array, column: int, other: Array, other_first: int, out: Array, at: int
) -> None:
    """out[at + k] += sum over t of rows[order[t], column + k] * other[other_first + t].

    For the columns of ``rows`` from ``column`` on.
    """
    last = rows.shape[1] - column - 1
    for k in range(0, last + 1, 4):
        # What is past the last column is the last one again.
        k1, k2, k3 = min(k + 1, last), min(k + 2, last), min(k + 3, last)
        for c in range(0, other.shape[1], COLUMNS):
            a0, a1 = load_wide(out, at + k, c), load_wide(out, at + k1, c)
            a2, a3 = load_wide(out, at + k2, c), load_wide(out, at + k3, c)
            for t in range(order.size):
                r = order[t]
                w = load_wide(other, other_first + t, c)
                a0 = plus_product(a0, spread_wide(rows, r, column + k), w)
                a1 = plus_product(a1, spread_wide(rows, r, column + k1), w)
                a2 = plus_product(a2, spread_wide(rows, r, column + k2), w)
                a3 = plus_product(a3, spread_wide(rows, r, column + k3), w)
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
) -> None:
    """Gradients of the projections: adds to ``to_rows`` and to ``to_kernel``.

    ``transposed`` is the kernel's transpose, ``gradient`` that of the hidden values [n, units].
    A few rows at a time, so that what is between the products stays in the first-level cache.
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
                for d in range(0, dim, LANES):
                    at = skipped + d
                    total = plus(load(to_rows, order[s], at), load(to_embedded, s - begin, d))
                    store(to_rows, order[s], at, total)
            add_outer_products(rows, order[begin:end], skipped, tile, 0, to_kernel, f * dim)
            begin = end


def warm_up() -> None:
    """Compiles for rows, kernels and dense columns that are read-only."""
    order, one = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    starts, middles = np.zeros(2, np.int64), np.zeros(1, np.int64)
    rows, kernel = np.zeros((1, LANES), np.float32), np.zeros((LANES + 1, COLUMNS), np.float32)
    dense, hidden = np.zeros((1, 1), np.float32), np.zeros((1, COLUMNS), np.float32)
    to_rows, to_kernel = rows.copy(), kernel.copy()
    transposed = np.zeros((COLUMNS, LANES), np.float32)
    for received in (rows, kernel, dense):
        received.flags.writeable = False
    begin_hidden(dense, kernel, kernel[:1], hidden)
    add_unrepeated(rows, order, starts, middles, order, kernel, hidden)
    project_repeated(rows, order, starts, middles, kernel, hidden)
    add_repeated(hidden, one, hidden)
    grouped = (order, starts, middles, order, order, order)
    project_gradients(hidden, rows, *grouped, transposed, to_rows, to_kernel)
    add_outer_products(dense, order, 0, hidden, 0, to_kernel, LANES)
    wide = np.zeros(1, np.float32)
    add_wide(rows, *grouped, wide)
    add_wide_gradient(wide, *grouped, to_rows)
