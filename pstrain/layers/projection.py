"""A table followed by a rectified ``Dense``, computed once per distinct id of a field.

In a batch of click logs four ids in five are repeats. Invariant: the result is that of the two
layers one after the other, up to the order in which float32 sums are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.features import Features
from pstrain.kernels import network
from pstrain.kernels import projection as kernels
from pstrain.layers.base import whole
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.pooling import FieldRows, distinct_rows, field_rows
from pstrain.tape import Tensor, record_all
from pstrain.vocabulary import Lookup

Float32 = NDArray[np.float32]

# Below this width the products are so small that adding projections costs more than they do.
_NARROWEST = 8
_MOST_DISTINCT = 0.75


@dataclass(frozen=True, slots=True)
class _Grouping:
    """Distinct rows by field; names as in ``pstrain.kernels.projection``."""

    slots: NDArray[np.int32]
    starts: list[int]
    order: NDArray[np.int32]

    def fields(self) -> list[tuple[int, slice]]:
        """(field, its range of distinct rows)."""
        pairs = zip(self.starts[:-1], self.starts[1:], strict=True)
        return [(f, slice(start, stop)) for f, (start, stop) in enumerate(pairs)]


def project(
    table: WideDeepTable,
    table_values: Sequence[Any],
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> tuple[Tensor, Tensor] | None:
    """What ``dense`` makes of ``table``'s matrix, float32 [n, units], and the wide sum [n, 1].

    None, with nothing recorded, where it would not pay: mostly distinct ids, narrow embeddings,
    or a layer without bias and rectifier.
    """
    if not _pays(table_values[0], inputs, table.dim, dense):
        return None
    bias = whole(table.variables[1], table_values[1])
    found = field_rows(table.variables[0], table_values[0], inputs)
    grouping = _grouping(found, table.fields)
    return _project(grouping, table.dim, found.rows, bias, dense, dense_values, inputs)


def project_embedding(
    table: Embedding,
    table_values: Sequence[Any],
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> Tensor | None:
    """What ``dense`` makes of ``table``'s matrix with the dense columns after it, [n, units].

    None as in :func:`project`.
    """
    if not _pays(table_values[0], inputs, table.dim, dense):
        return None
    found = field_rows(table.variables[0], table_values[0], inputs)
    grouping = _grouping(found, len(table.vocabulary_sizes))
    no_bias = Tensor(np.zeros(1, dtype=np.float32))
    return _project(grouping, table.dim, found.rows, no_bias, dense, dense_values, inputs)[0]


def _project(
    grouping: _Grouping,
    dim: int,
    rows: Tensor,
    table_bias: Tensor,
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> tuple[Tensor, Tensor]:
    kernel, bias = (whole(v, w) for v, w in zip(dense.variables, dense_values, strict=True))
    leaves = (rows, table_bias, kernel, bias)
    embedded = buffers.empty((len(grouping.order), dim))
    weights = buffers.empty((len(grouping.order),))
    kernels.take_rows(rows.value, grouping.order, embedded, weights)
    hidden, wide = _forward(grouping, embedded, weights, leaves, inputs)
    backward = _Backward(grouping, embedded, leaves, inputs, hidden)
    outputs = (Tensor(hidden), Tensor(wide))
    record_all(outputs, leaves, backward)
    return outputs


def _pays(lookup: Lookup, inputs: Features, dim: int, dense: Dense) -> bool:
    distinct, occurrences = distinct_rows(lookup, inputs)
    rectified = dense.use_bias and dense.activation == "relu"
    return distinct <= _MOST_DISTINCT * occurrences and dim >= _NARROWEST and rectified


def _grouping(found: FieldRows, fields: int) -> _Grouping:
    size = len(found.inverse)
    slots = np.empty((fields, size // fields), dtype=np.int32)
    starts = np.empty(fields + 1, dtype=np.int64)
    order = np.empty(size, dtype=np.int32)
    kernels.order_by_field(found.inverse, len(found.rows), fields, slots, starts, order)
    return _Grouping(slots, starts.tolist(), order[: starts[-1]])


def _forward(
    grouping: _Grouping,
    embedded: Float32,
    weights: Float32,
    leaves: Sequence[Tensor],
    inputs: Features,
) -> tuple[Float32, Float32]:
    _, table_bias, kernel, bias = (leaf.value for leaf in leaves)
    dim, units = embedded.shape[1], kernel.shape[1]
    hidden, wide = buffers.empty((len(inputs), units)), np.empty((len(inputs), 1), np.float32)
    np.matmul(inputs.dense, kernel[len(grouping.slots) * dim :], out=hidden)
    wide.fill(table_bias[0])
    projected = buffers.empty((_widest(grouping), units))
    for field, rows in grouping.fields():
        part = projected[: rows.stop - rows.start]
        np.matmul(embedded[rows], kernel[field * dim : (field + 1) * dim], out=part)
        kernels.add_projections(
            part, weights[rows], grouping.slots[field], hidden, wide.reshape(-1)
        )
    network.add_bias_relu(hidden, bias)
    return hidden, wide


def _widest(grouping: _Grouping) -> int:
    return max((rows.stop - rows.start for _, rows in grouping.fields()), default=0)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Gradients of one call, in the order of ``leaves``."""

    grouping: _Grouping
    embedded: Float32
    leaves: Sequence[Tensor]
    inputs: Features
    hidden: Float32

    def __call__(self, to_hidden: Float32 | None, to_wide: Float32 | None) -> list[Float32]:
        rows, _, kernel, bias = self.leaves
        size = len(self.inputs)
        plain = np.zeros(size, np.float32) if to_wide is None else to_wide.reshape(-1)
        gradient = buffers.zeros(self.hidden.shape)
        to_bias = np.zeros(bias.shape, dtype=np.float32)
        if to_hidden is not None:
            network.relu_gradient(to_hidden, self.hidden, gradient, to_bias)
        to_kernel = np.empty(kernel.shape, dtype=np.float32)
        embedded_columns = len(self.grouping.slots) * self.embedded.shape[1]
        np.matmul(self.inputs.dense.T, gradient, out=to_kernel[embedded_columns:])
        to_embedded = buffers.empty(self.embedded.shape)
        to_weights = buffers.zeros((len(self.embedded),))
        self._fields(gradient, plain, to_kernel, to_embedded, to_weights)
        to_rows = buffers.zeros(rows.shape)
        kernels.place_gradients(self.grouping.order, to_embedded, to_weights, to_rows)
        return [to_rows, plain.sum(keepdims=True), to_kernel, to_bias]

    def _fields(
        self,
        gradient: Float32,
        plain: Float32,
        to_kernel: Float32,
        to_embedded: Float32,
        to_weights: Float32,
    ) -> None:
        kernel, dim = self.leaves[2].value, self.embedded.shape[1]
        projected = buffers.empty((_widest(self.grouping), gradient.shape[1]))
        for field, rows in self.grouping.fields():
            part = projected[: rows.stop - rows.start]
            part.fill(0)
            slots = self.grouping.slots[field]
            kernels.collect_gradients(gradient, plain, slots, part, to_weights[rows])
            block = slice(field * dim, (field + 1) * dim)
            np.matmul(part, kernel[block].T, out=to_embedded[rows])
            np.matmul(self.embedded[rows].T, part, out=to_kernel[block])
