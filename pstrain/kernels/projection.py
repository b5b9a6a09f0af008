"""A dense layer over embeddings, worked out once per distinct id instead of once per occurrence.

With ids that repeat, ``sum over fields of embedding @ kernel_of_field`` is cheaper as: project each
distinct row, then add up projections. These kernels do all but the matrix products, field by field
so that one field's projections stay in the second-level cache. ``slots`` (int32 [fields, n]) says
which of its field's distinct rows an example has; ``starts`` (int64 [fields + 1]) where a field's
rows begin. Invariant: float32 throughout; a row that several fields have is projected for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.prefetch import ask_ahead

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def order_by_field(
    inverse: Array, distinct: int, fields: int, slots: Array, starts: Array, order: Array
) -> None:
    """Numbers each field's rows by first appearance: ``order[starts[f] + slots[f, i]]`` is i's.

    inverse int32 [n * fields] of values below ``distinct``; order int32 [n * fields], of which
    ``starts[fields]`` entries are filled: a row is there once for each field that has it.
    """
    taken = np.full(distinct, -1, np.int32)
    count = np.int32(0)
    for f in range(fields):
        first = count
        starts[f] = first
        for i in range(slots.shape[1]):
            row = np.uint64(inverse[i * fields + f])
            if taken[row] < first:
                taken[row] = count
                order[count] = row
                count += np.int32(1)
            slots[f, i] = taken[row] - first
    starts[fields] = count


@njit(nogil=True, cache=True)
def take_rows(rows: Array, order: Array, embedded: Array, weights: Array) -> None:
    """embedded[s] = the last columns of rows[order[s]]; weights[s] = the column before, or 0."""
    skipped = np.uint64(rows.shape[1] - embedded.shape[1])
    for s in range(len(order)):
        ask_ahead(rows, rows.shape[1], 0, order, s)
        row = np.uint64(order[s])
        weights[s] = rows[row, 0] if skipped else np.float32(0)
        for k in range(embedded.shape[1]):
            embedded[s, k] = rows[row, skipped + np.uint64(k)]


@njit(nogil=True, cache=True)
def add_projections(
    projected: Array, weights: Array, slots: Array, hidden: Array, wide: Array
) -> None:
    """hidden[i] += projected[slots[i]] and wide[i] += weights[slots[i]], for one field."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        wide[i] += weights[slot]
        for j in range(hidden.shape[1]):
            hidden[i, j] += projected[slot, j]


@njit(nogil=True, cache=True)
def collect_gradients(
    hidden: Array, wide: Array, slots: Array, projected: Array, weights: Array
) -> None:
    """Gradients of :func:`add_projections`: adds hidden[i] and wide[i] to slot slots[i]."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        weights[slot] += wide[i]
        for j in range(hidden.shape[1]):
            projected[slot, j] += hidden[i, j]


@njit(nogil=True, cache=True)
def place_gradients(order: Array, embedded: Array, weights: Array, out: Array) -> None:
    """Gradients of :func:`take_rows`: adds to the rows of ``out``, float32 [U, 1 + dim or dim]."""
    skipped = np.uint64(out.shape[1] - embedded.shape[1])
    for s in range(len(order)):
        row = np.uint64(order[s])
        if skipped:
            out[row, 0] += weights[s]
        for k in range(embedded.shape[1]):
            out[row, skipped + np.uint64(k)] += embedded[s, k]


def warm_up() -> None:
    """Compiles for float32 rows, gathered here or received, which makes them read-only."""
    inverse, order = np.zeros(1, np.int32), np.zeros(1, np.int32)
    slots, starts = np.zeros((1, 1), np.int32), np.zeros(2, np.int64)
    order_by_field(inverse, 1, 1, slots, starts, order)
    rows, matrix, vector = (np.zeros(s, np.float32) for s in ((1, 2), (1, 1), (1,)))
    received = rows.copy()
    received.flags.writeable = False
    for looked_up in (rows, received):
        take_rows(looked_up, order, matrix, vector)
    add_projections(matrix, vector, slots[0], matrix, vector)
    collect_gradients(matrix, vector, slots[0], matrix, vector)
    place_gradients(order, matrix, vector, rows)
