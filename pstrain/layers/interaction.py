"""Feature interactions: pairwise products, crosses with the input, and concatenation of columns.

Knows nothing of tables or models. Invariant: each example is computed independently of the others
in its batch, so a batch may be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_choice, integer_at_least
from pstrain import buffers, initializers
from pstrain.buffers import read_only
from pstrain.errors import InvalidArgumentError
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.kernels import cross
from pstrain.kernels import interaction as kernels
from pstrain.layers.base import Layer, as_matrix, contiguous_rows, whole_leaf, whole_leaves
from pstrain.layers.dense import Dense
from pstrain.variables.variable import create_variable

Float32 = NDArray[np.float32]


def concatenate(inputs: Sequence[Tensor | NDArray[Any]], axis: int = 1) -> Tensor:
    """Concatenates the columns of all inputs, float32 [n, sum of widths]; arrays are constants.

    ``axis`` may be 1 or -1, which are the same; ``np.concatenate`` of tensors takes other axes.
    """
    if axis not in (1, -1):
        raise InvalidArgumentError(
            f"concatenate puts columns side by side, which is axis=1, got axis={axis!r}: write "
            "np.concatenate(tensors, axis)"
        )
    tensors = [as_matrix("concatenate", one) for one in inputs]
    if len({len(one) for one in tensors}) != 1:
        shapes = ", ".join(str(one.shape) for one in tensors) or "nothing"
        raise InvalidArgumentError(
            f"concatenate takes matrices [n, k] of as many rows each, got {shapes}"
        )
    if len(tensors) == 1:
        return tensors[0]
    widths = [tensor.shape[1] for tensor in tensors]
    ends = np.cumsum(widths)
    joined = buffers.empty((len(tensors[0]), int(ends[-1])))
    np.concatenate([tensor.value for tensor in tensors], axis=1, out=joined)

    def backward(gradient: Float32) -> list[Float32]:
        return [
            np.ascontiguousarray(gradient[:, end - width : end])
            for width, end in zip(widths, ends, strict=True)
        ]

    return record(Tensor(joined), tensors, backward)


class Interaction(Layer):
    """A layer of dot products between the vectors of each example; it has no variables.

    Inputs are float32 [n, >= count * dim] and begin with ``count`` vectors of ``dim`` values.
    ``kind="dot"``: outputs the product of every pair, [n, count * (count - 1) / 2], with pair
    (f, g < f) at f * (f - 1) / 2 + g (DLRM, Naumov et al., 2019). ``kind="sum"``: outputs the sum
    of all products, [n, 1], the second-order term of a factorization machine (Rendle, 2010).
    """

    def __init__(
        self,
        count: int,
        dim: int,
        kind: Literal["dot", "sum"] = "dot",
        *,
        name: str = "interaction",
    ) -> None:
        super().__init__(name)
        name = self.name
        check_choice(f"layer {name!r}: kind", kind, ("dot", "sum"))
        self.count = integer_at_least(count, 1, f"layer {name!r}: count")
        self.dim = integer_at_least(dim, 1, f"layer {name!r}: dim")
        self.kind = kind

    def forward(self, values: Sequence[Any], inputs: Any) -> Tensor:  # noqa: ARG002
        vectors = as_matrix(self.name, inputs)
        if vectors.shape[1] < self.count * self.dim:
            raise InvalidArgumentError(
                f"layer {self.name!r} takes [n, at least {self.count * self.dim}], got "
                f"{vectors.shape}"
            )
        return self._dots(vectors) if self.kind == "dot" else self._sum(vectors)

    def _dots(self, vectors: Tensor) -> Tensor:
        pairs = self.count * (self.count - 1) // 2
        output = Tensor(buffers.empty((len(vectors), pairs)))
        rows = contiguous_rows(vectors.value)
        kernels.pair_dots(rows, self.count, self.dim, output.value)

        def backward(gradient: Float32) -> Float32:
            found = buffers.empty(vectors.shape)
            kernels.pair_dots_gradient(gradient, rows, self.count, self.dim, found)
            return found

        return record(output, (vectors,), backward)

    def _sum(self, vectors: Tensor) -> Tensor:
        sums = buffers.empty((len(vectors), self.dim))
        output = Tensor(np.empty((len(vectors), 1), np.float32))
        kernels.pair_sums(vectors.value, self.count, sums, output.value.reshape(-1))

        def backward(gradient: Float32) -> Float32:
            found = buffers.empty(vectors.shape)
            flat = np.ascontiguousarray(gradient).reshape(-1)
            kernels.pair_sums_gradient(flat, vectors.value, self.count, sums, found)
            return found

        return record(output, (vectors,), backward)


class Cross(Layer):
    """The cross layer of DCN V2: ``x0 * (W x + b) + x`` for ``(x0, x)``, both float32 [n, size].

    Wang et al., 2021. With ``rank`` the matrix W is the product of two thin matrices, size x rank
    and rank x size.
    """

    def __init__(
        self, size: int, rank: int | None = None, *, name: str = "cross", seed: int = 0
    ) -> None:
        super().__init__(name)
        name = self.name
        size = integer_at_least(size, 1, f"layer {name!r}: size")
        self._down = None
        if rank is not None:
            rank = integer_at_least(rank, 1, f"layer {name!r}: rank")
            self._down = Dense(
                rank, input_size=size, use_bias=False, name=f"{name}/down", seed=seed
            )
        self._out = Dense(size, input_size=rank or size, name=f"{name}/out", seed=seed)
        self.variables = [*(self._down.variables if self._down else ()), *self._out.variables]

    def forward(self, values: Sequence[Float32], inputs: tuple[Any, Any]) -> Tensor:
        first, last = self._checked(inputs)
        projected = last
        if self._down is not None:
            projected = self._down.forward(values[:1], last)
        kernel, bias = whole_leaves(self._out.variables, values[-2:])
        rows, weights = contiguous_rows(first.value), buffers.empty(first.shape)
        np.matmul(projected.value, kernel.value, out=weights)
        output, beside = Tensor(buffers.empty(first.shape)), read_only(bias.value.reshape(1, -1))
        cross.cross(rows, weights, beside, contiguous_rows(last.value), output.value)
        parts = (first, last, projected, kernel, bias)
        return record(output, parts, _CrossBackward(*parts, rows, weights))

    def _checked(self, inputs: Any) -> list[Tensor]:
        if not isinstance(inputs, tuple | list) or len(inputs) != 2:
            raise InvalidArgumentError(
                f"layer {self.name!r} takes (x0, x), two matrices, got {type(inputs).__name__}"
            )
        both, size = [as_matrix(self.name, each) for each in inputs], self._out.units
        for name, each in zip(("x0", "x"), both, strict=True):
            if each.shape != (len(both[0]), size):
                raise InvalidArgumentError(
                    f"layer {self.name!r} takes (x0, x), each [n, {size}], got {name} of shape "
                    f"{each.shape}"
                )
        return both


@dataclass(frozen=True, slots=True)
class _CrossBackward:
    """The backward function of one call; returns gradients in the order of its first 5 fields."""

    first: Tensor
    last: Tensor
    projected: Tensor
    kernel: Tensor
    bias: Tensor
    rows: Float32
    weights: Float32

    def __call__(self, gradient: Float32) -> list[Float32 | None]:
        to_weights, to_first = (buffers.empty(self.weights.shape) for _ in range(2))
        to_bias = np.zeros((1, self.weights.shape[1]), np.float32)
        is_same = self.first is self.last
        gradient = contiguous_rows(gradient)
        cross.cross_gradient(
            gradient, self.rows, self.weights, np.float32(is_same), to_weights, to_first, to_bias
        )
        to_projected = None
        if self.projected.tracked:
            to_projected = buffers.empty(self.projected.shape)
            np.matmul(to_weights, self.kernel.value.T, out=to_projected)
        to_kernel = self.projected.value.T @ to_weights
        to_last = None if is_same else gradient
        return [to_first, to_last, to_projected, to_kernel, to_bias.reshape(-1)]


class NumericEmbedding(Layer):
    """A layer of a vector per column, times its value: [n, columns] to [n, columns * dim]."""

    def __init__(
        self, columns: int, dim: int, *, name: str = "numeric_embedding", seed: int = 0
    ) -> None:
        super().__init__(name)
        name = self.name
        self.columns = columns = integer_at_least(columns, 1, f"layer {name!r}: columns")
        self.dim = dim = integer_at_least(dim, 1, f"layer {name!r}: dim")
        start = initializers.uniform(seed=initializers.seed_for(name, seed))
        self.variables = [create_variable(start, shape=(columns, dim), name=name)]

    def forward(self, values: Sequence[Float32], inputs: Any) -> Tensor:
        vectors = whole_leaf(self.variables[0], values[0])
        numbers = as_matrix(self.name, inputs)
        if numbers.shape[1] != self.columns:
            raise InvalidArgumentError(
                f"layer {self.name!r} takes [n, {self.columns}], got {numbers.shape}"
            )
        output = buffers.empty((len(numbers), self.columns * self.dim))
        shaped = output.reshape(len(numbers), self.columns, self.dim)
        np.multiply(numbers.value[:, :, None], vectors.value, out=shaped)

        def backward(gradient: Float32) -> list[Float32 | None]:
            per_column = gradient.reshape(len(numbers), self.columns, self.dim)
            found: list[Float32 | None] = [
                np.einsum("nc,nck->ck", numbers.value, per_column, dtype=np.float32),
                None,
            ]
            if numbers.tracked:
                found[1] = np.einsum("ck,nck->nc", vectors.value, per_column, dtype=np.float32)
            return found

        return record(Tensor(output), (vectors, numbers), backward)
