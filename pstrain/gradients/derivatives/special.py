"""Derivatives of SciPy's special functions, by name.

Arrays in, arrays out: knows nothing of tensors and tapes. Invariant: SciPy is never imported here;
a program that passes one of its functions has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from pstrain.gradients.derivatives.computed import Array


def _of_xlogy(grad: Array, _output: Array, x: Array, y: Array) -> Sequence[Array]:
    # Where x is 0, both derivatives are set to 0, as in TensorFlow, because y may be 0 there.
    divisor = np.where(x == 0, 1, y)
    return grad * np.log(divisor), grad * (x / divisor)


_TWO_OVER_ROOT_PI: Final = 2 / math.sqrt(math.pi)

UFUNCS: Final[dict[str, Callable[..., Sequence[Array]]]] = {
    "expit": lambda g, out, _: (g * out * (1 - out),),
    "log_expit": lambda g, out, _: (g * -np.expm1(out),),
    "logit": lambda g, _, x: (g / (x * (1 - x)),),
    "erf": lambda g, _, x: (g * _TWO_OVER_ROOT_PI * np.exp(-x * x),),
    "xlogy": _of_xlogy,
}


def derivative(ufunc: Any) -> Callable[..., Sequence[Array]] | None:
    """Returns the derivative of a function of ``scipy.special``; None for other functions."""
    name = ufunc.__name__
    is_scipys = getattr(sys.modules.get("scipy.special"), name, None) is ufunc
    return UFUNCS.get(name) if is_scipys else None


def names() -> str:
    """Returns the names of all functions with gradients, as users write them."""
    return ", ".join(sorted(UFUNCS))
