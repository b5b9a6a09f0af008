"""Functions with gradients, and functions that are piecewise constant.

Arrays in, arrays out: knows nothing of tensors and tapes. Invariant: nothing here changes an array
that it is given, and the gradient of an argument has the argument's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstrain.gradients.derivatives import contractions, reductions, shapes, special
from pstrain.gradients.derivatives.computed import Array, Computed, check_shapes, reaches, summed_to

__all__ = ["CONSTANT", "FUNCTIONS", "OF_LISTS", "TAKEN", "UFUNCS", "WRITES", "Rule", "check_shapes"]
__all__ += ["derivative_of", "names", "reaches", "summed_to"]

# Takes the gradient of the output, the output and the inputs; returns the inputs' gradients.
Derivative: TypeAlias = "Callable[..., Sequence[Array]]"


def _of_power(grad: Array, output: Array, base: Array, exponent: Array) -> Sequence[Array]:
    # x ** 0 has derivative 0, also at x = 0. For a base of 0 or below the derivative by the
    # exponent is set to 0.
    lowered = np.where(exponent == 0, 1, base) ** np.where(exponent == 0, 0, exponent - 1)
    logarithm = np.log(np.where(base > 0, base, 1))
    return grad * exponent * lowered, grad * output * logarithm


def _of_logaddexp(grad: Array, output: Array, left: Array, right: Array) -> Sequence[Array]:
    return grad * np.exp(left - output), grad * np.exp(right - output)


_LN_2, _LN_10 = math.log(2), math.log(10)

# At a kink the derivative is one-sided: `maximum` and `minimum` of equal values take the first.
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


class Rule(NamedTuple):
    """How a function is computed, and the positions of the arguments that have gradients."""

    compute: Callable[..., Computed]
    where: slice = slice(1)

    def places(self, args: Sequence[Any]) -> range:
        """Returns the positions of the arguments of a call that have gradients."""
        return range(len(args))[self.where]


def _clip(
    values: Array, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Computed:
    """``np.clip``; ``min`` and ``max`` are newer names of the bounds."""
    if not (a_min is a_max is None or min is max is None):
        raise ValueError("np.clip takes its bounds as a_min and a_max, or as min and max")
    a_min, a_max = (a_min, a_max) if min is max is None else (min, max)
    low = -np.inf if a_min is None else a_min
    high = np.inf if a_max is None else a_max
    inside = (values >= low) & (values <= high)
    return Computed(
        np.clip(values, a_min, a_max), lambda grad: (summed_to(values.shape, grad * inside),)
    )


TAKEN = Rule(shapes.taken)
_MOVING = (np.diagonal, np.flip, np.moveaxis, np.repeat, np.roll, np.take_along_axis, np.tile)
FUNCTIONS: dict[Any, Rule] = {
    np.sum: Rule(reductions.total),
    np.mean: Rule(reductions.mean),
    np.max: Rule(reductions.largest),
    np.amax: Rule(reductions.largest),
    np.min: Rule(reductions.smallest),
    np.amin: Rule(reductions.smallest),
    np.var: Rule(reductions.variance),
    np.std: Rule(reductions.deviation),
    np.linalg.norm: Rule(reductions.norm),
    np.where: Rule(shapes.where, slice(1, 3)),
    np.clip: Rule(_clip),
    np.reshape: Rule(shapes.reshape),
    np.squeeze: Rule(shapes.squeeze),
    np.ravel: Rule(shapes.ravel),
    np.expand_dims: Rule(shapes.expand_dims),
    np.broadcast_to: Rule(shapes.broadcast_to),
    np.take: Rule(shapes.take),
    np.transpose: Rule(shapes.transpose),
    np.swapaxes: Rule(shapes.swapaxes),
    np.matmul: Rule(contractions.matmul, slice(0, 2)),
    np.dot: Rule(contractions.dot, slice(0, 2)),
    np.inner: Rule(contractions.inner, slice(0, 2)),
    np.outer: Rule(contractions.outer, slice(0, 2)),
    np.einsum: Rule(contractions.einsum, slice(1, None)),
    np.diag: Rule(shapes.diag),
    **{function: Rule(shapes.moving(function)) for function in _MOVING},
}
# Functions of a list of arrays; their rules take the arrays as separate arguments.
OF_LISTS: dict[Any, Rule] = {
    np.concatenate: Rule(shapes.concatenate, slice(None)),
    np.stack: Rule(shapes.stack, slice(None)),
}

_STEPS = (np.sign, np.floor, np.ceil, np.rint, np.trunc, np.fix, np.floor_divide, np.round)
_SHAPES = (np.zeros_like, np.ones_like, np.full_like, np.empty_like)
# Piecewise constant functions, and functions of the shape only: they have no gradient to lose.
CONSTANT: frozenset[Any] = frozenset((*_STEPS, np.around, *_SHAPES))
# Functions that write into their first argument and return nothing.
WRITES: frozenset[Any] = frozenset(
    (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal)
)


def derivative_of(ufunc: Any) -> Derivative | None:
    """Returns the derivative of a ufunc of NumPy or SciPy; None if there is none."""
    return UFUNCS.get(ufunc) or special.derivative(ufunc)


def names() -> str:
    """Returns the names of all functions with gradients, as users write them."""
    found = {function.__name__ for function in (*UFUNCS, *FUNCTIONS, *OF_LISTS)}
    return f"{', '.join(sorted(found))}, and of scipy.special {special.names()}"
