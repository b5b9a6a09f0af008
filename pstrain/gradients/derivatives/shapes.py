"""Rules of functions that move values without changing them: reshaping, indexing, joining.

Arrays in, arrays out. Invariant: except for reshaping, no result is a view of an argument that the
program may write to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

from pstrain.gradients.derivatives.computed import Array, Computed, summed_to
from pstrain.kernels.embedding import scatter_fields

# Index types that select no value twice.
_OF_SLICES = (int, np.integer, slice, EllipsisType, NoneType)


def where(condition: Any, x: Any, y: Any) -> Computed:
    def backward(grad: Array) -> Sequence[Array]:
        parts = np.where(condition, grad, 0), np.where(condition, 0, grad)
        return [summed_to(np.shape(one), part) for one, part in zip((x, y), parts, strict=True)]

    return Computed(np.where(condition, x, y), backward)


def reshape(values: Array, shape: Any) -> Computed:
    return Computed(np.reshape(values, shape), lambda grad: (np.reshape(grad, values.shape),))


def squeeze(values: Array, axis: Any = None) -> Computed:
    return reshape(values, np.squeeze(values, axis).shape)


def ravel(values: Array) -> Computed:
    return reshape(values, -1)


def expand_dims(values: Array, axis: Any) -> Computed:
    return reshape(values, np.expand_dims(values, axis).shape)


def broadcast_to(values: Any, shape: Any) -> Computed:
    return Computed(
        np.broadcast_to(values, shape).copy(), lambda grad: (summed_to(np.shape(values), grad),)
    )


def taken(values: Array, key: Any) -> Computed:
    """``values[key]``; a value that is selected several times gets the sum of gradients."""

    def backward(grad: Array) -> Sequence[Array]:
        # In C order, whatever the memory order of ``values``.
        total = np.zeros(values.shape, values.dtype)
        _add_at(total, key, grad)
        return (total,)

    return Computed(np.array(values[key]), backward)


def _add_at(total: Array, key: Any, grad: Array) -> None:
    """Does what ``np.add.at`` does value by value, but handles slices and rows in one call."""
    if all(isinstance(one, _OF_SLICES) for one in (key if isinstance(key, tuple) else (key,))):
        total[key] += grad
        return
    rows = np.asarray(key) if isinstance(key, list | np.ndarray) else np.empty(0)
    if grad.size and rows.dtype.kind in "iu" and total.dtype == grad.dtype == np.float32:
        places = np.where(rows < 0, rows + len(total), rows).reshape(-1).astype(np.int32)
        given = np.require(grad.reshape(len(places), -1), requirements=("C", "W"))
        scatter_fields(given, places, 1, total.reshape(len(total), -1))
    else:
        np.add.at(total, key, grad)


def take(values: Array, indices: Any, axis: int | None = None) -> Computed:
    """``np.take``."""
    places = np.asarray(indices)
    if axis is None:
        return moving(np.take)(values, places)
    before = axis % values.ndim
    return taken(values, (*[slice(None)] * before, places))


def moving(function: Callable[..., Any]) -> Callable[..., Computed]:
    """Returns the rule of a function that only drops, moves and repeats values."""

    def compute(values: Array, *args: Any, **options: Any) -> Computed:
        places = function(np.arange(values.size).reshape(values.shape), *args, **options)
        flat = taken(values.reshape(-1), places)
        return Computed(
            flat.value, lambda grad: [one.reshape(values.shape) for one in flat.backward(grad)]
        )

    return compute


def diag(values: Array, k: int = 0) -> Computed:
    """``np.diag``: the diagonal of a matrix, or the matrix with a vector as diagonal."""
    if np.ndim(values) == 1:
        return Computed(np.diag(values, k), lambda grad: (np.diagonal(grad, k).copy(),))
    return moving(np.diag)(values, k)


def transpose(values: Array, axes: Any = None) -> Computed:
    back = None if axes is None else np.argsort(np.asarray(axes) % np.ndim(values))
    return Computed(
        np.array(np.transpose(values, axes)), lambda grad: (np.transpose(grad, back).copy(),)
    )


def swapaxes(values: Array, axis1: int, axis2: int) -> Computed:
    return Computed(
        np.array(np.swapaxes(values, axis1, axis2)),
        lambda grad: (np.swapaxes(grad, axis1, axis2).copy(),),
    )


def concatenate(*parts: Any, axis: int | None = 0) -> Computed:
    """``np.concatenate``, with the parts as separate arguments."""
    value = np.concatenate(parts, axis)
    shapes = [np.shape(part) for part in parts]
    ends = np.cumsum([math.prod(shape) if axis is None else shape[axis] for shape in shapes])

    def backward(grad: Array) -> Sequence[Array]:
        pieces = np.split(grad, ends[:-1], axis or 0)
        return [one.reshape(shape).copy() for one, shape in zip(pieces, shapes, strict=True)]

    return Computed(value, backward)


def stack(*parts: Any, axis: int = 0) -> Computed:
    """``np.stack``, with the parts as separate arguments."""
    return Computed(
        np.stack(parts, axis), lambda grad: [one.copy() for one in np.moveaxis(grad, axis, 0)]
    )
