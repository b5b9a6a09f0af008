"""The result type of rules, and the arithmetic of gradients of broadcast arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError

Array: TypeAlias = "NDArray[Any]"


class Computed(NamedTuple):
    """The value of a function, and the backward function to the arguments that have gradients."""

    value: Array
    backward: Callable[[Array], Sequence[Array]]


def summed_to(shape: tuple[int, ...], grad: Array) -> Array:
    """Returns the gradient of an array of ``shape`` that was broadcast to the shape of ``grad``."""
    if np.shape(grad) == shape:
        return grad
    added = grad.ndim - len(shape)
    spread = tuple(axis + added for axis, size in enumerate(shape) if size == 1)
    return grad.sum(axis=(*range(added), *spread)).reshape(shape)


def reaches(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """True if an array of shape ``small`` can be broadcast to shape ``large``."""
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(mine in (1, size) for mine, size in pairs)


def check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises InvalidArgumentError if neither of two shapes can be broadcast to the other.

    NumPy would accept more, such as (n, 1) with (n,), which it broadcasts to (n, n).
    """
    first, last = shapes[0], shapes[-1]
    if not (reaches(first, last) or reaches(last, first)):
        raise InvalidArgumentError(
            f"tensors of shapes {first} and {last} cannot be combined: both need the same shape, "
            "or one that is repeated to the other, as (k,) and (n, 1) are to (n, k); "
            "tensor.reshape(-1) makes (n,) of (n, 1)"
        )
