"""NumPy's functions whose gradients a tape can take, and those that are constant in between steps.

Arrays in, arrays out: knows nothing of tensors and tapes. Invariant: nothing here changes an array
it was given, and what goes back to an argument has its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError

Array: TypeAlias = "NDArray[Any]"
# Of the gradient of an output, the output, and the inputs, to the gradients of these.
Derivative: TypeAlias = "Callable[..., Sequence[Array]]"


def _of_power(grad: Array, output: Array, base: Array, exponent: Array) -> Sequence[Array]:
    # A power of 0 has slope 0, also at 0; of a base below 0 there is none by its exponent.
    lowered = np.where(exponent == 0, 1, base) ** np.where(exponent == 0, 0, exponent - 1)
    logarithm = np.log(np.where(base > 0, base, 1))
    return grad * exponent * lowered, grad * output * logarithm


def _of_logaddexp(grad: Array, output: Array, left: Array, right: Array) -> Sequence[Array]:
    return grad * np.exp(left - output), grad * np.exp(right - output)


_LN_2, _LN_10 = math.log(2), math.log(10)

# At a kink that of one side: of equal values `maximum` and `minimum` take the first.
UFUNCS: dict[Any, Derivative] = {
    np.add: lambda g, *_: (g, g),
    np.subtract: lambda g, *_: (g, -g),
    np.multiply: lambda g, _, x, y: (g * y, g * x),
    np.divide: lambda g, out, _, y: (g / y, -(g / y) * out),
    np.power: _of_power,
    np.maximum: lambda g, _, x, y: (g * (x >= y), g * (x < y)),
    np.minimum: lambda g, _, x, y: (g * (x <= y), g * (x > y)),
    np.logaddexp: _of_logaddexp,
    np.negative: lambda g, *_: (-g,),
    np.positive: lambda g, *_: (g,),
    np.absolute: lambda g, _, x: (g * np.sign(x),),
    np.fabs: lambda g, _, x: (g * np.sign(x),),
    np.square: lambda g, _, x: (g * 2 * x,),
    np.sqrt: lambda g, out, _: (g / (2 * out),),
    np.cbrt: lambda g, out, _: (g / (3 * out * out),),
    np.reciprocal: lambda g, out, _: (-g * out * out,),
    np.exp: lambda g, out, _: (g * out,),
    np.exp2: lambda g, out, _: (g * out * _LN_2,),
    np.expm1: lambda g, out, _: (g * (out + 1),),
    np.log: lambda g, _, x: (g / x,),
    np.log2: lambda g, _, x: (g / (x * _LN_2),),
    np.log10: lambda g, _, x: (g / (x * _LN_10),),
    np.log1p: lambda g, _, x: (g / (x + 1),),
    np.sin: lambda g, _, x: (g * np.cos(x),),
    np.cos: lambda g, _, x: (-g * np.sin(x),),
    np.tan: lambda g, out, _: (g * (1 + out * out),),
    np.arctan: lambda g, _, x: (g / (1 + x * x),),
    np.sinh: lambda g, _, x: (g * np.cosh(x),),
    np.cosh: lambda g, _, x: (g * np.sinh(x),),
    np.tanh: lambda g, out, _: (g * (1 - out * out),),
}


class Computed(NamedTuple):
    """What a function gave, and how its gradient goes back to the arguments that have some."""

    value: Array
    backward: Callable[[Array], Sequence[Array]]


class Rule(NamedTuple):
    """How a function is computed, and to the arguments of which places its gradient goes."""

    compute: Callable[..., Computed]
    places: tuple[int, ...] = (0,)


def _sum(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    def backward(grad: Array) -> Sequence[Array]:
        whole = grad if keepdims or axis is None else np.expand_dims(grad, axis)
        return (np.broadcast_to(whole, values.shape).copy(),)

    return Computed(np.asarray(np.sum(values, axis=axis, keepdims=keepdims)), backward)


def _mean(values: Array, axis: Any = None, *, keepdims: bool = False) -> Computed:
    value = np.asarray(np.mean(values, axis=axis, keepdims=keepdims))
    total = _sum(values, axis, keepdims=keepdims)
    # Of nothing the mean is no number, and there is nothing to give a gradient to.
    share = value.size / max(values.size, 1)
    return Computed(value, lambda grad: [part * share for part in total.backward(grad)])


def _where(condition: Any, x: Any, y: Any) -> Computed:
    def backward(grad: Array) -> Sequence[Array]:
        parts = np.where(condition, grad, 0), np.where(condition, 0, grad)
        return [_summed_to(np.shape(one), part) for one, part in zip((x, y), parts, strict=True)]

    return Computed(np.where(condition, x, y), backward)


def _summed_to(shape: tuple[int, ...], grad: Array) -> Array:
    """The gradient of what was broadcast to the shape of ``grad``."""
    added = grad.ndim - len(shape)
    spread = tuple(axis + added for axis, size in enumerate(shape) if size == 1)
    return grad.sum(axis=(*range(added), *spread)).reshape(shape)


def _clip(
    values: Array, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Computed:
    """``min`` and ``max`` are the newer names of the bounds."""
    if not (a_min is a_max is None or min is max is None):
        raise ValueError("np.clip takes its bounds as a_min and a_max, or as min and max")
    a_min, a_max = (a_min, a_max) if min is max is None else (min, max)
    low = -np.inf if a_min is None else a_min
    high = np.inf if a_max is None else a_max
    inside = (values >= low) & (values <= high)
    return Computed(
        np.clip(values, a_min, a_max), lambda grad: (_summed_to(values.shape, grad * inside),)
    )


def _reshape(values: Array, shape: Any) -> Computed:
    return Computed(np.reshape(values, shape), lambda grad: (np.reshape(grad, values.shape),))


def _squeeze(values: Array, axis: Any = None) -> Computed:
    return _reshape(values, np.squeeze(values, axis).shape)


def _ravel(values: Array) -> Computed:
    return _reshape(values, -1)


def _expand_dims(values: Array, axis: Any) -> Computed:
    return _reshape(values, np.expand_dims(values, axis).shape)


def _taken(values: Array, key: Any) -> Computed:
    """``values[key]``; what is taken several times gets the sum."""

    def backward(grad: Array) -> Sequence[Array]:
        total = np.zeros_like(values)
        np.add.at(total, key, grad)
        return (total,)

    return Computed(np.array(values[key]), backward)


def _transpose(values: Array, axes: Any = None) -> Computed:
    back = None if axes is None else np.argsort(np.asarray(axes) % np.ndim(values))
    return Computed(
        np.array(np.transpose(values, axes)), lambda grad: (np.transpose(grad, back).copy(),)
    )


def _matmul(x: Any, y: Any) -> Computed:
    x, y = np.asarray(x), np.asarray(y)
    _check_contracted("matmul", x, y)
    rows = x if x.ndim > 1 else x[np.newaxis, :]
    columns = y if y.ndim > 1 else y[:, np.newaxis]

    def backward(grad: Array) -> Sequence[Array]:
        whole = grad if y.ndim > 1 else grad[..., np.newaxis]
        whole = whole if x.ndim > 1 else np.expand_dims(whole, -2)
        of_rows = _summed_to(rows.shape, whole @ np.swapaxes(columns, -1, -2))
        of_columns = _summed_to(columns.shape, np.swapaxes(rows, -1, -2) @ whole)
        return of_rows.reshape(x.shape), of_columns.reshape(y.shape)

    return Computed(np.asarray(np.matmul(x, y)), backward)


def _dot(x: Any, y: Any) -> Computed:
    """Of more than two axes another product than ``matmul``: of all rows with all columns."""
    x, y = np.asarray(x), np.asarray(y)
    if not (x.ndim and y.ndim):
        scaled = np.asarray(x * y)
        return Computed(
            scaled, lambda grad: (_summed_to(x.shape, grad * y), _summed_to(y.shape, grad * x))
        )
    _check_contracted("dot", x, y)
    columns = np.moveaxis(y, -2, 0) if y.ndim > 1 else y
    of_x, of_y = list(range(x.ndim - 1)), list(range(1, y.ndim))

    def backward(grad: Array) -> Sequence[Array]:
        rest = list(range(x.ndim - 1, grad.ndim))
        of_columns = np.tensordot(x, grad, (of_x, of_x))
        back = np.moveaxis(of_columns, 0, -2) if y.ndim > 1 else of_columns
        return np.tensordot(grad, columns, (rest, of_y)), back

    return Computed(np.asarray(np.dot(x, y)), backward)


def _check_contracted(name: str, x: Array, y: Array) -> None:
    """InvalidArgumentError where the rows of one and the columns of the other differ in length."""
    if not (x.ndim and y.ndim) or x.shape[-1] != y.shape[-2:][0]:
        raise InvalidArgumentError(
            f"{name} of shapes {x.shape} and {y.shape}: the last axis of the first must be as long "
            "as the last but one of the second, or its only one; `*` multiplies by a number"
        )


TAKEN = Rule(_taken)
FUNCTIONS: dict[Any, Rule] = {
    np.sum: Rule(_sum),
    np.mean: Rule(_mean),
    np.where: Rule(_where, places=(1, 2)),
    np.clip: Rule(_clip),
    np.reshape: Rule(_reshape),
    np.squeeze: Rule(_squeeze),
    np.ravel: Rule(_ravel),
    np.expand_dims: Rule(_expand_dims),
    np.transpose: Rule(_transpose),
    np.matmul: Rule(_matmul, places=(0, 1)),
    np.dot: Rule(_dot, places=(0, 1)),
}

_STEPS = (np.sign, np.floor, np.ceil, np.rint, np.trunc, np.fix, np.floor_divide, np.round)
_SHAPES = (np.zeros_like, np.ones_like, np.full_like, np.empty_like)
# What changes in steps only, or not at all: it has no gradient to lose.
CONSTANT: frozenset[Any] = frozenset((*_STEPS, np.around, *_SHAPES))
# What puts values into its first argument, and returns nothing.
WRITES: frozenset[Any] = frozenset(
    (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal)
)


def names() -> str:
    """Of all that have gradients, as users write them."""
    found = {function.__name__ for function in (*UFUNCS, *FUNCTIONS)}
    return ", ".join(sorted(found))
