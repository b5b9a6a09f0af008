"""A dense layer over embeddings, worked out once per distinct id instead of once per occurrence.

With ids that repeat, ``sum over fields of embedding @ kernel_of_field`` is cheaper as: project each
distinct row, then add up projections. ``order`` (int32 [D]) lists the rows of field after field, so
a row that several fields have is there once for each; ``starts`` (int64 [fields + 1]) says where a
field's begin; ``places`` (int32 [n, fields]) which of them an example has. The other way round,
``examples[firsts[s] : firsts[s + 1]]`` are those that have ``order[s]``. Sums are kept in registers
and products in the first-level cache. Invariant: float32 throughout; the width of embeddings is a
multiple of ``LANES``, that of the layer of ``COLUMNS``.
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
_TILE = 64
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
def order_by_field(
    inverse: Array, distinct: int, places: Array, starts: Array, order: Array, firsts: Array
) -> None:
    """Fills ``places``, ``starts`` and the first ``starts[fields]`` of ``order`` and ``firsts``.

    inverse int32 [n * fields] of values below ``distinct``. ``firsts`` int32 [n * fields + 1] gets
    one more than rows.
    """
    taken = np.full(distinct, -1, np.int32)
    count = np.int32(0)
    size, fields = places.shape
    firsts[0] = 0
    for f in range(fields):
        first = count
        starts[f] = first
        for i in range(size):
            row = np.uint64(inverse[i * fields + f])
            place = taken[row]
            if place < first:
                place = count
                taken[row] = count
                order[count] = row
                count += np.int32(1)
                firsts[count] = 0
            places[i, f] = place
            firsts[np.uint64(place) + np.uint64(1)] += np.int32(1)
    starts[fields] = count
    for s in range(count):
        firsts[s + 1] += firsts[s]


@njit(nogil=True, cache=True)
def list_examples(places: Array, firsts: Array, examples: Array) -> None:
    """Fills ``examples``, int32 [n * fields]."""
    count = firsts.size - 1
    next_ = firsts[:count].copy()
    size, fields = places.shape
    for f in range(fields):
        for i in range(size):
            place = np.uint64(places[i, f])
            examples[np.uint64(next_[place])] = i
            next_[place] += np.int32(1)


@njit(nogil=True, cache=True)
def project_rows(rows: Array, order: Array, starts: Array, kernel: Array, projected: Array) -> None:
    """projected[s] = the last ``dim`` columns of rows[order[s]] @ the kernel of its field."""
    fields = starts.size - 1
    skipped = rows.shape[1] & (LANES - 1)
    dim = rows.shape[1] - skipped
    for f in range(fields):
        last = starts[f + 1] - 1
        for s in range(starts[f], starts[f + 1], 4):
            # The rows past a field's last are the last one again.
            s1, s2, s3 = min(s + 1, last), min(s + 2, last), min(s + 3, last)
            r0, r1, r2, r3 = order[s], order[s1], order[s2], order[s3]
            for c in range(0, projected.shape[1], COLUMNS):
                t0, t1, t2, t3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
                for k in range(dim):
                    w = load_wide(kernel, f * dim + k, c)
                    t0 = plus_product(t0, spread_wide(rows, r0, skipped + k), w)
                    t1 = plus_product(t1, spread_wide(rows, r1, skipped + k), w)
                    t2 = plus_product(t2, spread_wide(rows, r2, skipped + k), w)
                    t3 = plus_product(t3, spread_wide(rows, r3, skipped + k), w)
                store(projected, s, c, t0)
                store(projected, s1, c, t1)
                store(projected, s2, c, t2)
                store(projected, s3, c, t3)


@njit(nogil=True, cache=True)
def add_projections(
    projected: Array, places: Array, dense: Array, kernel: Array, bias: Array, hidden: Array
) -> None:
    """hidden[i] = max(bias + dense[i] @ the kernel's last rows + sum of its projections, 0).

    ``bias`` is [1, units].
    """
    fields, values, units = places.shape[1], dense.shape[1], hidden.shape[1]
    first, flat = kernel.shape[0] - values, places.reshape(-1)
    for i in range(hidden.shape[0]):
        c = 0
        while c + _64 <= units:
            t0, t1, t2, t3 = _load4(bias, 0, c)
            for v in range(values):
                x = spread_wide(dense, i, v)
                w0, w1, w2, w3 = _load4(kernel, first + v, c)
                t0, t1 = plus_product(t0, x, w0), plus_product(t1, x, w1)
                t2, t3 = plus_product(t2, x, w2), plus_product(t3, x, w3)
            for p in range(i * fields, (i + 1) * fields):
                if c == 0:
                    ahead = np.intp(flat[min(p + ROWS_AHEAD, flat.size - 1)])
                    for offset in range(0, 4 * units, LINE_BYTES):
                        prefetch(projected, ahead, offset)
                w0, w1, w2, w3 = _load4(projected, flat[p], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            t0, t1 = positive_part(t0), positive_part(t1)
            _put4(hidden, i, c, t0, t1, positive_part(t2), positive_part(t3))
            c += _64
        while c < units:
            t0 = load_wide(bias, 0, c)
            for v in range(values):
                w = load_wide(kernel, first + v, c)
                t0 = plus_product(t0, spread_wide(dense, i, v), w)
            for p in range(i * fields, (i + 1) * fields):
                t0 = plus(t0, load_wide(projected, flat[p], c))
            store(hidden, i, c, positive_part(t0))
            c += COLUMNS


@njit(nogil=True, cache=True)
def add_wide(rows: Array, inverse: Array, fields: int, bias: Array, wide: Array) -> None:
    """wide[i] = bias + sum of column 0 of its rows."""
    for i in range(wide.size):
        total = bias[0]
        for f in range(fields):
            total += rows[np.uint64(inverse[i * fields + f]), 0]
        wide[i] = total


@njit(nogil=True, cache=True)
def add_wide_gradient(gradient: Array, inverse: Array, fields: int, to_rows: Array) -> None:
    """Gradient of :func:`add_wide`: adds to column 0 of ``to_rows``."""
    for i in range(gradient.size):
        for f in range(fields):
            to_rows[np.uint64(inverse[i * fields + f]), 0] += gradient[i]


@njit(nogil=True, cache=True)
def _sum_examples(
    gradient: Array, examples: Array, firsts: Array, begin: int, end: int, out: Array
) -> None:
    """out[t] = sum of gradient[i] over the examples i that have ``order[begin + t]``."""
    units, last = out.shape[1], examples.size - 1
    for s in range(begin, end):
        t, c = s - begin, 0
        while c + _64 <= units:
            t0, t1, t2, t3 = zeros_wide(), zeros_wide(), zeros_wide(), zeros_wide()
            for e in range(firsts[s], firsts[s + 1]):
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
            for e in range(firsts[s], firsts[s + 1]):
                t0 = plus(t0, load_wide(gradient, examples[e], c))
            store(out, t, c, t0)
            c += COLUMNS


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
    firsts: Array,
    examples: Array,
    transposed: Array,
    to_rows: Array,
    to_kernel: Array,
) -> None:
    """Gradients of the projections: adds to ``to_rows`` and to ``to_kernel``.

    ``transposed`` is the kernel's transpose, ``gradient`` that of the hidden values [n, units].
    A few rows at a time, so that what is between the products stays in the first-level cache.
    """
    skipped = rows.shape[1] & (LANES - 1)
    dim = rows.shape[1] - skipped
    tile = np.zeros((_TILE, gradient.shape[1]), np.float32)
    to_embedded = np.empty((_TILE, dim), np.float32)
    for f in range(starts.size - 1):
        for begin in range(starts[f], starts[f + 1], _TILE):
            end = min(begin + _TILE, starts[f + 1])
            _sum_examples(gradient, examples, firsts, begin, end, tile)
            _times_transposed(tile, end - begin, transposed, f * dim, to_embedded)
            for s in range(begin, end):
                for d in range(0, dim, LANES):
                    at = skipped + d
                    total = plus(load(to_rows, order[s], at), load(to_embedded, s - begin, d))
                    store(to_rows, order[s], at, total)
            add_outer_products(rows, order[begin:end], skipped, tile, 0, to_kernel, f * dim)


def warm_up() -> None:
    """Compiles for rows, kernels and dense columns that are read-only."""
    inverse, places = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    order, firsts, starts = np.zeros(1, np.int32), np.zeros(2, np.int32), np.zeros(2, np.int64)
    order_by_field(inverse, 1, places, starts, order, firsts)
    list_examples(places, firsts, inverse)
    rows, kernel = np.zeros((1, LANES), np.float32), np.zeros((LANES + 1, COLUMNS), np.float32)
    dense, hidden = np.zeros((1, 1), np.float32), np.zeros((1, COLUMNS), np.float32)
    to_rows, to_kernel = rows.copy(), kernel.copy()
    transposed = np.zeros((COLUMNS, LANES), np.float32)
    for received in (rows, kernel, dense):
        received.flags.writeable = False
    project_rows(rows, order, starts, kernel, hidden)
    add_projections(hidden, places, dense, kernel, kernel[:1], hidden)
    project_gradients(hidden, rows, order, starts, firsts, inverse, transposed, to_rows, to_kernel)
    add_outer_products(dense, order, 0, hidden, 0, to_kernel, LANES)
    wide = np.zeros(1, np.float32)
    bias = wide.copy()
    bias.flags.writeable = False
    add_wide(rows, inverse, 1, bias, wide)
    add_wide_gradient(wide, inverse, 1, to_rows)
