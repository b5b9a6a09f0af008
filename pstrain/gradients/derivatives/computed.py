"""What every rule of a function gives, and how the gradient of what was repeated adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError

Array: TypeAlias = "NDArray[Any]"


class Computed(NamedTuple):
    """What a function gave, and how its gradient goes back to the arguments that have some."""

    value: Array
    backward: Callable[[Array], Sequence[Array]]


def summed_to(shape: tuple[int, ...], grad: Array) -> Array:
    """The gradient of what was broadcast to the shape of ``grad``."""
    if np.shape(grad) == shape:
        return grad
    added = grad.ndim - len(shape)
    spread = tuple(axis + added for axis, size in enumerate(shape) if size == 1)
    return grad.sum(axis=(*range(added), *spread)).reshape(shape)


def reaches(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether repeating along whole axes makes ``large`` of ``small``."""
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(mine in (1, size) for mine, size in pairs)


def check_shapes(shapes: Sequence[tuple[int, ...]]) -> None:
    """InvalidArgumentError for two shapes of which neither is repeated to the other.

    NumPy would take more, such as (n, 1) and (n,), of which it makes (n, n).
    """
    first, last = shapes[0], shapes[-1]
    if not (reaches(first, last) or reaches(last, first)):
        raise InvalidArgumentError(
            f"tensors of shapes {first} and {last} cannot be combined: both need the same shape, "
            "or one that is repeated to the other, as (k,) and (n, 1) are to (n, k); "
            "tensor.reshape(-1) makes (n,) of (n, 1)"
        )
