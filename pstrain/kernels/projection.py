"""A dense layer over embeddings, computed once per distinct id instead of once per occurrence.

If ids repeat, it is cheaper to compute ``sum over fields of embedding @ kernel_of_field`` by
projecting each distinct row once and then adding up the projections. Rows are grouped as in
``fields``; ``order`` (int32) has the row of each distinct id, so that a row in several fields
appears once for each. Repeating rows are projected into a separate array; the projections of other
rows are added to their example at once. Sums are kept in registers. Gradients are in
``projection_gradients``. Knows no model. Invariant: float32 throughout; the width of embeddings is
a multiple of ``LANES``, the width of the layer a multiple of ``COLUMNS``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.vectors import (
    FOUR_LANES,
    LANES,
    TWO_LANES,
    WIDE_LANES,
    WIDE_REGISTERS,
    load_broadcast_wide,
    load_four,
    load_two,
    load_wide,
    plus,
    plus_product,
    positive_part,
    store,
    store_four,
    store_two,
)

Array = NDArray[Any]

COLUMNS = WIDE_LANES


@njit(nogil=True, cache=True)
def begin_hidden(dense: Array, kernel: Array, bias: Array, hidden: Array) -> None:
    """hidden[i] = bias + dense[i] @ the last rows of ``kernel``; ``bias`` is [1, units]."""
    values, units = dense.shape[1], hidden.shape[1]
    first = kernel.shape[0] - values
    for i in range(hidden.shape[0]):
        c = 0
        while c + FOUR_LANES <= units:
            t0, t1, t2, t3 = load_four(bias, 0, c)
            for v in range(values):
                x = load_broadcast_wide(dense, i, v)
                w0, w1, w2, w3 = load_four(kernel, first + v, c)
                t0, t1 = plus_product(t0, x, w0), plus_product(t1, x, w1)
                t2, t3 = plus_product(t2, x, w2), plus_product(t3, x, w3)
            store_four(hidden, i, c, t0, t1, t2, t3)
            c += FOUR_LANES
        while c < units:
            t0 = load_wide(bias, 0, c)
            for v in range(values):
                w = load_wide(kernel, first + v, c)
                t0 = plus_product(t0, load_broadcast_wide(dense, i, v), w)
            store(hidden, i, c, t0)
            c += COLUMNS


@njit(nogil=True, cache=True)
def _add_products(
    out: Array, to: Any, rows: Array, of: Any, skipped: int, kernel: Array, at: int
) -> None:
    """Adds rows ``of`` of ``rows``, times the kernel from row ``at`` on, to rows ``to`` of ``out``.

    ``to`` and ``of`` have four rows each; the first ``skipped`` columns of ``rows`` do not count.
    """
    column = 0
    while WIDE_REGISTERS and column + TWO_LANES <= out.shape[1]:
        _add_to_two(out, to, column, rows, of, skipped, kernel, at)
        column += TWO_LANES
    while column < out.shape[1]:
        _add_to_one(out, to, column, rows, of, skipped, kernel, at)
        column += COLUMNS


# Inlined, because a compiled function counts references to its arrays, and each call would wait for
# the count of the one before.
@njit(nogil=True, cache=True, inline="always")
def _add_to_two(
    out: Array, to: Any, column: int, rows: Array, of: Any, skipped: int, kernel: Array, at: int
) -> None:
    """Adds what :func:`_add_products` adds to ``TWO_LANES`` columns.

    Eight sums at a time keep the multipliers busy, while each waits for its last product.
    """
    a, b, c, d = to
    e, f, g, h = of
    t0, u0 = load_two(out, a, column)
    t1, u1 = load_two(out, b, column)
    t2, u2 = load_two(out, c, column)
    t3, u3 = load_two(out, d, column)
    for k in range(rows.shape[1] - skipped):
        w, v = load_two(kernel, at + k, column)
        x = load_broadcast_wide(rows, e, skipped + k)
        t0, u0 = plus_product(t0, x, w), plus_product(u0, x, v)
        x = load_broadcast_wide(rows, f, skipped + k)
        t1, u1 = plus_product(t1, x, w), plus_product(u1, x, v)
        x = load_broadcast_wide(rows, g, skipped + k)
        t2, u2 = plus_product(t2, x, w), plus_product(u2, x, v)
        x = load_broadcast_wide(rows, h, skipped + k)
        t3, u3 = plus_product(t3, x, w), plus_product(u3, x, v)
    store_two(out, a, column, t0, u0)
    store_two(out, b, column, t1, u1)
    store_two(out, c, column, t2, u2)
    store_two(out, d, column, t3, u3)


@njit(nogil=True, cache=True, inline="always")
def _add_to_one(
    out: Array, to: Any, column: int, rows: Array, of: Any, skipped: int, kernel: Array, at: int
) -> None:
    """Adds what :func:`_add_products` adds to ``COLUMNS`` columns."""
    a, b, c, d = to
    e, f, g, h = of
    t0, t1 = load_wide(out, a, column), load_wide(out, b, column)
    t2, t3 = load_wide(out, c, column), load_wide(out, d, column)
    for k in range(rows.shape[1] - skipped):
        w = load_wide(kernel, at + k, column)
        t0 = plus_product(t0, load_broadcast_wide(rows, e, skipped + k), w)
        t1 = plus_product(t1, load_broadcast_wide(rows, f, skipped + k), w)
        t2 = plus_product(t2, load_broadcast_wide(rows, g, skipped + k), w)
        t3 = plus_product(t3, load_broadcast_wide(rows, h, skipped + k), w)
    store(out, a, column, t0)
    store(out, b, column, t1)
    store(out, c, column, t2)
    store(out, d, column, t3)


@njit(nogil=True, cache=True)
def project_repeated(
    rows: Array, order: Array, starts: Array, middles: Array, kernel: Array, projected: Array
) -> None:
    """projected[r] = the last ``dim`` columns of the row of repeating id ``r`` @ its kernel.

    projected[0] is 0, for ids that do not repeat.
    """
    skipped = rows.shape[1] & (LANES - 1)
    dim = rows.shape[1] - skipped
    projected[:] = 0
    before = 1
    for f in range(middles.size):
        begin, last = starts[f], middles[f] - 1
        for s in range(begin, middles[f], 4):
            # Rows past the last one of a field stand for the last one again.
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
    """Adds the projections of rows that only one example has to that example's hidden[i]."""
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
    """hidden[i] = max(hidden[i] + the sum of the projections of its repeating rows, 0)."""
    fields, units = repeated.shape[1], hidden.shape[1]
    for i in range(hidden.shape[0]):
        c = 0
        while c + FOUR_LANES <= units:
            t0, t1, t2, t3 = load_four(hidden, i, c)
            for f in range(fields):
                w0, w1, w2, w3 = load_four(projected, repeated[np.uint64(i), np.uint64(f)], c)
                t0, t1, t2, t3 = plus(t0, w0), plus(t1, w1), plus(t2, w2), plus(t3, w3)
            t0, t1 = positive_part(t0), positive_part(t1)
            store_four(hidden, i, c, t0, t1, positive_part(t2), positive_part(t3))
            c += FOUR_LANES
        while c < units:
            t0 = load_wide(hidden, i, c)
            for f in range(fields):
                t0 = plus(t0, load_wide(projected, repeated[np.uint64(i), np.uint64(f)], c))
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
    """wide[i] += the sum of column 0 over the rows of example i."""
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


def warm_up() -> None:
    """Compiles for read-only rows, kernels and dense columns."""
    order, one = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    starts, middles = np.zeros(2, np.int64), np.zeros(1, np.int64)
    rows, kernel = np.zeros((1, LANES), np.float32), np.zeros((LANES + 1, COLUMNS), np.float32)
    dense, hidden = np.zeros((1, 1), np.float32), np.zeros((1, COLUMNS), np.float32)
    for received in (rows, kernel, dense):
        received.flags.writeable = False
    begin_hidden(dense, kernel, kernel[:1], hidden)
    add_unrepeated(rows, order, starts, middles, order, kernel, hidden)
    project_repeated(rows, order, starts, middles, kernel, hidden)
    add_repeated(hidden, one, hidden)
    add_wide(rows, order, starts, middles, order, order, order, np.zeros(1, np.float32))
