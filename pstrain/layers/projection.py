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
from pstrain.buffers import read_only
from pstrain.features import Features
from pstrain.kernels import network
from pstrain.kernels import projection as kernels
from pstrain.kernels.vectors import LANES
from pstrain.layers.base import whole
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.pooling import FieldRows, distinct_rows, field_rows
from pstrain.tape import Tensor, record_all
from pstrain.vocabulary import Lookup

Float32 = NDArray[np.float32]

_MOST_DISTINCT = 0.75


@dataclass(frozen=True, slots=True)
class _Grouping:
    """Distinct rows by field; names as in ``pstrain.kernels.projection``."""

    places: NDArray[np.int32]
    starts: NDArray[np.int64]
    order: NDArray[np.int32]
    firsts: NDArray[np.int32]


def project(
    table: WideDeepTable,
    table_values: Sequence[Any],
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> tuple[Tensor, Tensor] | None:
    """What ``dense`` makes of ``table``'s matrix, float32 [n, units], and the wide sum [n, 1].

    None, with nothing recorded, where it would not pay: mostly distinct ids, a layer without bias
    and rectifier, or widths that do not fill vectors.
    """
    if not _pays(table_values[0], inputs, table.dim, dense):
        return None
    bias = whole(table.variables[1], table_values[1])
    found = field_rows(table.variables[0], table_values[0], inputs)
    return _project(found, table.fields, bias, dense, dense_values, inputs)


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
    return _project(found, len(table.vocabulary_sizes), None, dense, dense_values, inputs)[0]


def _project(
    found: FieldRows,
    fields: int,
    table_bias: Tensor | None,
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> tuple[Tensor, Tensor]:
    """``table_bias`` None: there is no wide part, and the second of the outputs is empty."""
    kernel, bias = (whole(v, w) for v, w in zip(dense.variables, dense_values, strict=True))
    grouping = _grouping(found, fields)
    rows, matrix = read_only(found.rows.value), read_only(kernel.value)
    projected = buffers.empty((len(grouping.order), dense.units))
    kernels.project_rows(rows, grouping.order, grouping.starts, matrix, projected)
    hidden = buffers.empty((len(inputs), dense.units))
    kernels.add_projections(
        projected,
        grouping.places,
        read_only(inputs.dense),
        matrix,
        read_only(bias.value).reshape(1, -1),
        hidden,
    )
    wide = np.empty((0 if table_bias is None else len(inputs), 1), np.float32)
    if table_bias is not None:
        column = wide.reshape(-1)
        kernels.add_wide(rows, found.inverse, fields, read_only(table_bias.value), column)
    leaves = [found.rows, kernel, bias] + ([] if table_bias is None else [table_bias])
    outputs = (Tensor(hidden), Tensor(wide))
    record_all(outputs, leaves, _Backward(grouping, found, leaves, inputs, hidden))
    return outputs


def _pays(lookup: Lookup, inputs: Features, dim: int, dense: Dense) -> bool:
    distinct, occurrences = distinct_rows(lookup, inputs)
    rectified = dense.use_bias and dense.activation == "relu"
    fits = dim % LANES == 0 and dense.units % kernels.COLUMNS == 0
    return distinct <= _MOST_DISTINCT * occurrences and fits and rectified


def _grouping(found: FieldRows, fields: int) -> _Grouping:
    size = len(found.inverse)
    places = buffers.empty((size // fields, fields)).view(np.int32)
    starts = np.empty(fields + 1, dtype=np.int64)
    order = buffers.empty((size,)).view(np.int32)
    firsts = buffers.empty((size + 1,)).view(np.int32)
    kernels.order_by_field(found.inverse, len(found.rows), places, starts, order, firsts)
    count = int(starts[-1])
    return _Grouping(places, starts, order[:count], firsts[: count + 1])


@dataclass(frozen=True, slots=True)
class _Backward:
    """Gradients of one call, in the order of ``leaves``."""

    grouping: _Grouping
    found: FieldRows
    leaves: Sequence[Tensor]
    inputs: Features
    hidden: Float32

    def __call__(self, to_hidden: Float32 | None, to_wide: Float32 | None) -> list[Float32]:
        rows, kernel, bias = self.leaves[:3]
        to_rows = buffers.zeros(rows.shape)
        to_kernel = buffers.zeros(kernel.shape)
        to_bias = np.zeros(bias.shape, dtype=np.float32)
        if to_hidden is not None:
            gradient = buffers.empty(self.hidden.shape)
            network.relu_gradient(to_hidden, self.hidden, gradient, to_bias)
            self._project(gradient, to_rows, to_kernel)
        if len(self.leaves) == 3:
            return [to_rows, to_kernel, to_bias]
        plain = np.zeros(len(self.inputs), np.float32) if to_wide is None else to_wide.reshape(-1)
        fields = self.grouping.places.shape[1]
        kernels.add_wide_gradient(plain, self.found.inverse, fields, to_rows)
        return [to_rows, to_kernel, to_bias, plain.sum(keepdims=True)]

    def _project(self, gradient: Float32, to_rows: Float32, to_kernel: Float32) -> None:
        grouping, rows, kernel = self.grouping, self.leaves[0].value, self.leaves[1].value
        dense = read_only(self.inputs.dense)
        embedded_columns = len(kernel) - dense.shape[1]
        examples = buffers.empty((grouping.places.size,)).view(np.int32)
        kernels.list_examples(grouping.places, grouping.firsts, examples)
        kernels.project_gradients(
            gradient,
            read_only(rows),
            grouping.order,
            grouping.starts,
            grouping.firsts,
            examples,
            np.ascontiguousarray(kernel[:embedded_columns].T),
            to_rows,
            to_kernel,
        )
        if dense.shape[1]:
            every = np.arange(len(dense), dtype=np.int32)
            kernels.add_outer_products(dense, every, 0, gradient, 0, to_kernel, embedded_columns)
