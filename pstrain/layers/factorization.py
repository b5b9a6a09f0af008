"""The parts of a factorization machine, for looked-up rows and numeric columns.

The vector of a numeric column is the column's own vector times the value. Vectors are never
concatenated: products of all pairs need only the sum of the vectors, and a dense layer's output
for the vector of a numeric column is the value times one row. Knows nothing of models. Invariant:
results are those of ``NumericEmbedding``, ``concatenate`` and ``Interaction``, up to the order in
which float32 sums are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.buffers import read_only
from pstrain.features.field_groups import FieldGroups
from pstrain.features.schema import Features
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.kernels import factorization as kernels
from pstrain.layers.pooling import FieldRows, has_each_row_once, rows_of

Float32 = NDArray[np.float32]


def pair_logits(
    found: FieldRows, fields: int, bias: Tensor, numeric: Tensor | None, inputs: Features
) -> Tensor:
    """Returns bias + weights + dot products of all pairs of vectors, float32 [n, 1].

    ``found``: rows [weight, vector]. ``numeric``: the vectors of the dense columns of ``inputs``,
    [columns, dim]; None leaves these columns out.
    """
    groups = found.groups(fields)
    rows, numbers = read_only(found.rows.value), inputs.dense
    sums = buffers.empty((len(inputs), rows.shape[1] - 1))
    logits = np.full((len(inputs), 1), bias.value[0])
    flat = logits.reshape(-1)
    if numeric is None:
        sums.fill(0)
    else:
        np.matmul(numbers, numeric.value, out=sums)
        squares = np.square(numeric.value).sum(axis=1)
        flat -= np.float32(0.5) * (np.square(numbers) @ squares)
    kernels.add_vectors(rows, *rows_of(groups), sums, flat)
    kernels.add_half_squares(sums, flat)
    leaves = [found.rows, bias] + ([] if numeric is None else [numeric])
    return record(Tensor(logits), leaves, _PairsBackward(groups, leaves, inputs, sums))


@dataclass(frozen=True, slots=True)
class _PairsBackward:
    """The backward function of one call; returns gradients in the order of ``leaves``."""

    groups: FieldGroups
    leaves: Sequence[Tensor]
    inputs: Features
    sums: Float32

    def __call__(self, gradient: Float32) -> list[Float32]:
        flat = np.ascontiguousarray(gradient).reshape(-1)
        weighted = buffers.empty(self.sums.shape)
        kernels.weigh(flat, self.sums, weighted)
        rows = self.leaves[0].value
        each_once = has_each_row_once(self.groups, rows, self.inputs)
        to_rows = (buffers.empty if each_once else buffers.zeros)(rows.shape)
        grouped = rows_of(self.groups)
        kernels.vectors_gradient(flat, weighted, read_only(rows), *grouped, to_rows, each_once)
        found = [to_rows, flat.sum(keepdims=True)]
        if len(self.leaves) == 2:
            return found
        numbers, numeric = self.inputs.dense, self.leaves[2].value
        squares = flat @ np.square(numbers)
        return [*found, numbers.T @ weighted - squares[:, None] * numeric]


def folded(kernel: Tensor, numeric: Tensor) -> Tensor:
    """Returns a dense layer's kernel for numeric columns in place of their vectors.

    The last columns * dim rows of ``kernel`` [k + columns * dim, units] apply to vectors, each a
    number times a row of ``numeric`` [columns, dim]. The result, [k + columns, units], applies to
    the numbers themselves: the rows of each column become one.
    """
    vectors = numeric.value
    columns, dim = vectors.shape
    before, units = len(kernel) - columns * dim, kernel.shape[1]
    blocks = kernel.value[before:].reshape(columns, dim, units)
    output = np.empty((before + columns, units), np.float32)
    output[:before] = kernel.value[:before]
    np.matmul(vectors[:, None, :], blocks, out=output[before:, None, :])

    def backward(gradient: Float32) -> list[Float32]:
        of_numbers = gradient[before:]
        to_kernel = buffers.empty(kernel.shape)
        to_kernel[:before] = gradient[:before]
        to_blocks = to_kernel[before:].reshape(columns, dim, units)
        np.multiply(vectors[:, :, None], of_numbers[:, None, :], out=to_blocks)
        return [to_kernel, np.matmul(blocks, of_numbers[:, :, None])[:, :, 0]]

    return record(Tensor(output), (kernel, numeric), backward)
