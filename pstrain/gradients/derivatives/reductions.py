"""Rules of reductions: sum, mean, extremes, variance and norm.

Arrays in, arrays out. Invariant: the gradient of an argument has the argument's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pstrain.gradients.derivatives.computed import Array, Computed


def total(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    """``np.sum``."""
    return Computed(
        np.asarray(np.sum(values, axis=axis, keepdims=keepdims)),
        lambda grad: (np.broadcast_to(_kept(grad, values, axis), values.shape).copy(),),
    )


def mean(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    """``np.mean``."""
    value = np.asarray(np.mean(values, axis=axis, keepdims=keepdims))
    sums = total(values, axis, keepdims=keepdims)
    # The mean of no values is NaN, and there is no value that could get a gradient.
    share = value.size / max(values.size, 1)
    return Computed(value, lambda grad: [part * share for part in sums.backward(grad)])


def largest(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    """``np.max``."""
    return _extreme(np.max, values, axis, keepdims)


def smallest(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    """``np.min``."""
    return _extreme(np.min, values, axis, keepdims)


def variance(
    values: Array, axis: Any = None, *, ddof: float = 0, keepdims: bool = False
) -> Computed:
    """``np.var``."""
    value = np.asarray(np.var(values, axis=axis, ddof=ddof, keepdims=keepdims))
    count = values.size / max(value.size, 1) - ddof
    # The variance of too few values is NaN, and so is its gradient.
    slope = 2 / count if count > 0 else np.nan

    def backward(grad: Array) -> Sequence[Array]:
        centred = values - np.mean(values, axis=axis, keepdims=True)
        return (_kept(grad, values, axis) * centred * slope,)

    return Computed(value, backward)


def deviation(
    values: Array, axis: Any = None, *, ddof: float = 0, keepdims: bool = False
) -> Computed:
    """``np.std``; for equal values it has a kink, where the gradient is set to 0."""
    square = variance(values, axis, ddof=ddof, keepdims=keepdims)
    root = np.sqrt(square.value)
    return Computed(root, lambda grad: square.backward(_over(grad, 2 * root)))


def norm(values: Array, *, axis: Any = None, keepdims: bool = False) -> Computed:
    """``np.linalg.norm``, the root of the sum of squares; for a norm of 0 the gradient is 0."""
    value = np.asarray(np.linalg.norm(values, axis=axis, keepdims=keepdims))
    return Computed(
        value, lambda grad: (_kept(np.asarray(_over(grad, value)), values, axis) * values,)
    )


def _extreme(pick: Callable[..., Any], values: Array, axis: Any, keepdims: bool) -> Computed:
    """Returns an extreme; values that are equally extreme share the gradient."""
    value = np.asarray(pick(values, axis=axis, keepdims=keepdims))

    def backward(grad: Array) -> Sequence[Array]:
        is_picked = values == _kept(value, values, axis)
        picked = np.sum(is_picked, axis=axis, keepdims=True)
        return (_kept(grad, values, axis) * is_picked / picked,)

    return Computed(value, backward)


def _kept(reduced: Array, values: Array, axis: Any) -> Array:
    """Returns ``reduced`` with an axis of length 1 in place of each reduced axis."""
    if np.ndim(reduced) == values.ndim:
        return reduced
    axes = tuple(range(values.ndim)) if axis is None else axis
    return np.expand_dims(reduced, axes)


def _over(grad: Array, divisor: Array) -> Array:
    return np.where(divisor == 0, 0, grad / np.where(divisor == 0, 1, divisor))
