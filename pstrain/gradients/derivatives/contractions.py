"""Rules of products that sum over an axis: of matrices and vectors, and of einsum.

Arrays in, arrays out. Invariant: the gradient of an argument has the argument's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.gradients.derivatives.computed import Array, Computed, summed_to


def matmul(x: Any, y: Any) -> Computed:
    x, y = np.asarray(x), np.asarray(y)
    _check_contracted("matmul", x, y)
    rows = x if x.ndim > 1 else x[np.newaxis, :]
    columns = y if y.ndim > 1 else y[:, np.newaxis]

    def backward(grad: Array) -> Sequence[Array]:
        whole = grad if y.ndim > 1 else grad[..., np.newaxis]
        whole = whole if x.ndim > 1 else np.expand_dims(whole, -2)
        of_rows = summed_to(rows.shape, whole @ np.swapaxes(columns, -1, -2))
        of_columns = summed_to(columns.shape, np.swapaxes(rows, -1, -2) @ whole)
        return of_rows.reshape(x.shape), of_columns.reshape(y.shape)

    return Computed(np.asarray(np.matmul(x, y)), backward)


def dot(x: Any, y: Any) -> Computed:
    """``np.dot``: for more than two axes it multiplies all rows with all columns, unlike matmul."""
    x, y = np.asarray(x), np.asarray(y)
    if not (x.ndim and y.ndim):
        return _scaled(x, y)
    _check_contracted("dot", x, y)
    columns = np.moveaxis(y, -2, 0) if y.ndim > 1 else y
    of_x, of_y = list(range(x.ndim - 1)), list(range(1, y.ndim))

    def backward(grad: Array) -> Sequence[Array]:
        rest = list(range(x.ndim - 1, grad.ndim))
        of_columns = np.tensordot(x, grad, (of_x, of_x))
        back = np.moveaxis(of_columns, 0, -2) if y.ndim > 1 else of_columns
        return np.tensordot(grad, columns, (rest, of_y)), back

    return Computed(np.asarray(np.dot(x, y)), backward)


def inner(x: Any, y: Any) -> Computed:
    """``np.inner``: like ``dot``, but with the rows of the second argument instead of columns."""
    x, y = np.asarray(x), np.asarray(y)
    if not (x.ndim and y.ndim):
        return _scaled(x, y)
    if x.shape[-1] != y.shape[-1]:
        raise InvalidArgumentError(
            f"inner of shapes {x.shape} and {y.shape}: the last axes must be of one length"
        )
    of_x, of_y = list(range(x.ndim - 1)), list(range(y.ndim - 1))

    def backward(grad: Array) -> Sequence[Array]:
        rest = list(range(x.ndim - 1, grad.ndim))
        return np.tensordot(grad, y, (rest, of_y)), np.tensordot(grad, x, (of_x, of_x))

    return Computed(np.asarray(np.inner(x, y)), backward)


def outer(x: Any, y: Any) -> Computed:
    x, y = np.asarray(x), np.asarray(y)
    return Computed(
        np.outer(x, y),
        lambda grad: (
            (grad @ y.reshape(-1)).reshape(x.shape),
            (x.reshape(-1) @ grad).reshape(y.shape),
        ),
    )


def einsum(subscripts: str, *operands: Any) -> Computed:
    """``np.einsum`` with subscripts as text that name each axis once per operand."""
    if not isinstance(subscripts, str):
        raise UnimplementedError(
            f"np.einsum of tensors takes its subscripts as text, such as 'ij,jk->ik', got "
            f"{subscripts!r}"
        )
    arrays = [np.asarray(one) for one in operands]
    value = np.asarray(np.einsum(subscripts, *arrays))
    names, output = _axes(subscripts, [array.ndim for array in arrays], value.ndim)

    def backward(grad: Array) -> Sequence[Array]:
        return [_of_operand(place, arrays, names, output, grad) for place in range(len(arrays))]

    return Computed(value, backward)


def _of_operand(
    place: int, arrays: Sequence[Array], names: Sequence[str], output: str, grad: Array
) -> Array:
    """Returns one operand's gradient: an einsum of the output's gradient and the other operands."""
    mine = names[place]
    if len(set(mine)) < len(mine):
        raise UnimplementedError(
            f"np.einsum has no gradient to an operand whose axes are {mine!r}: name each axis once"
        )
    others = [one for other, one in enumerate(names) if other != place]
    rest = [one for other, one in enumerate(arrays) if other != place]
    known = [name for name in mine if name in output or any(name in one for one in others)]
    part = np.einsum(",".join([output, *others]) + "->" + "".join(known), grad, *rest)
    # Axes that only this operand has were summed, so all positions along them share a gradient.
    alone = [axis for axis, name in enumerate(mine) if name not in known]
    spread = np.expand_dims(part, alone)
    shape = arrays[place].shape
    whole = np.broadcast_to(spread, np.broadcast_shapes(spread.shape, shape))
    return np.array(summed_to(shape, whole))


def _axes(subscripts: str, ndims: Sequence[int], ndim: int) -> tuple[list[str], str]:
    """Returns a letter for each axis of each operand and of the output, those of ``...`` too."""
    given, arrow, output = subscripts.replace(" ", "").partition("->")
    spare = [letter for letter in ascii_letters if letter not in given]
    names = [_expanded(one, n, spare) for one, n in zip(given.split(","), ndims, strict=True)]
    if arrow:
        return names, _expanded(output, ndim, spare)
    every = "".join(names)
    led = [name for name in spare if name in every]
    once = sorted(name for name in set(every) - set(led) if every.count(name) == 1)
    return names, "".join([*reversed(led), *once])


def _expanded(axes: str, ndim: int, spare: Sequence[str]) -> str:
    """Replaces ``...`` by letters of ``spare``; the first of these is for its last axis."""
    count = ndim - len(axes.replace("...", ""))
    return axes.replace("...", "".join(reversed(spare[:count])))


def _scaled(x: Array, y: Array) -> Computed:
    """Returns the product with a scalar."""
    return Computed(
        np.asarray(x * y),
        lambda grad: (summed_to(x.shape, grad * y), summed_to(y.shape, grad * x)),
    )


def _check_contracted(name: str, x: Array, y: Array) -> None:
    """Raises InvalidArgumentError if rows of ``x`` and columns of ``y`` differ in length."""
    if not (x.ndim and y.ndim) or x.shape[-1] != y.shape[-2:][0]:
        raise InvalidArgumentError(
            f"{name} of shapes {x.shape} and {y.shape}: the last axis of the first must be as long "
            "as the last but one of the second, or its only one; `*` multiplies by a number"
        )
