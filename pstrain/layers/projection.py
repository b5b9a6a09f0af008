"""Fuses a table and the ReLU ``Dense`` after it, computed once per distinct id of a field.

In a batch of click logs four ids in five are repeats. Knows nothing of models. Invariant: the
result is that of the two layers in sequence, up to the order in which float32 sums are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.buffers import read_only
from pstrain.features.field_groups import FieldGroups
from pstrain.features.schema import Features
from pstrain.gradients.recording import record_all
from pstrain.gradients.tensor import Tensor
from pstrain.kernels import network, projection_gradients
from pstrain.kernels import projection as kernels
from pstrain.kernels.vectors import LANES
from pstrain.layers.base import whole_leaves
from pstrain.layers.dense import Dense
from pstrain.layers.embedding import Embedding, WideDeepTable
from pstrain.layers.pooling import (
    FieldRows,
    distinct_rows,
    field_rows,
    group_arrays,
    has_each_row_once,
)
from pstrain.vocabulary import Lookup

Float32 = NDArray[np.float32]

_MOST_DISTINCT = 0.75


def project(
    table: WideDeepTable,
    table_values: Sequence[Any],
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> tuple[Tensor, Tensor] | None:
    """Returns ``dense`` of ``table``'s matrix, float32 [n, units], and the wide sum, [n, 1].

    Returns None, and records nothing, if that would not be faster: the ids are mostly distinct, the
    layer lacks bias or ReLU, or the widths do not fill vectors.
    """
    if not is_worth_fusing(table_values[0], inputs, table.dim, dense):
        return None
    found, bias = table.leaves(table_values, inputs)
    leaves = whole_leaves(dense.variables, dense_values)
    return project_rows(found, table.fields, bias, leaves, inputs)


def project_embedding(
    table: Embedding,
    table_values: Sequence[Any],
    dense: Dense,
    dense_values: Sequence[Float32],
    inputs: Features,
) -> Tensor | None:
    """Returns ``dense`` of ``table``'s matrix followed by the dense columns, float32 [n, units].

    Returns None in the cases of :func:`project`.
    """
    if not is_worth_fusing(table_values[0], inputs, table.dim, dense):
        return None
    found = field_rows(table.variables[0], table_values[0], inputs)
    leaves = whole_leaves(dense.variables, dense_values)
    return project_rows(found, len(table.vocabulary_sizes), None, leaves, inputs)[0]


def project_rows(
    found: FieldRows,
    fields: int,
    table_bias: Tensor | None,
    of_dense: Sequence[Tensor],
    inputs: Features,
) -> tuple[Tensor, Tensor]:
    """Returns the output of a ReLU layer for looked-up rows, and the wide sum.

    ``of_dense``: kernel and bias of the layer, for which :func:`is_worth_fusing` has to hold.
    ``table_bias`` None: there is no wide part, and the second output is empty.
    """
    kernel, bias = of_dense
    groups = found.groups(fields)
    rows, matrix = read_only(found.rows.value), read_only(kernel.value)
    hidden = _hidden(rows, groups, inputs, matrix, read_only(bias.value))
    wide = np.empty((0 if table_bias is None else len(inputs), 1), np.float32)
    if table_bias is not None:
        wide.fill(table_bias.value[0])
        kernels.add_wide(rows, *group_arrays(groups), wide.reshape(-1))
    leaves = [found.rows, kernel, bias] + ([] if table_bias is None else [table_bias])
    outputs = (Tensor(hidden), Tensor(wide))
    record_all(outputs, leaves, _Backward(groups, leaves, inputs, hidden))
    return outputs


def _hidden(
    rows: Float32, groups: FieldGroups, inputs: Features, kernel: Float32, bias: Float32
) -> Float32:
    """Returns the layer's output, [n, units]."""
    hidden = buffers.empty((len(inputs), kernel.shape[1]))
    order, starts, middles, repeated, examples, firsts, _ = groups
    kernels.begin_hidden(read_only(inputs.dense), kernel, bias.reshape(1, -1), hidden)
    kernels.add_unrepeated(rows, order, starts, middles, examples, kernel, hidden)
    projected = buffers.empty((len(firsts), kernel.shape[1]))
    kernels.project_repeated(rows, order, starts, middles, kernel, projected)
    kernels.add_repeated(projected, repeated, hidden)
    return hidden


def is_worth_fusing(lookup: Lookup, inputs: Features, dim: int, dense: Dense) -> bool:
    """True if :func:`project_rows` applies and is faster than the two layers in sequence.

    Rows have to repeat enough, widths to fill vectors, and the layer needs bias and ReLU.
    """
    distinct, occurrences = distinct_rows(lookup, inputs)
    rectified = dense.use_bias and dense.activation == "relu"
    fits = dim % LANES == 0 and dense.units % kernels.COLUMNS == 0
    return distinct <= _MOST_DISTINCT * occurrences and fits and rectified


@dataclass(frozen=True, slots=True)
class _Backward:
    """The backward function of one call; returns gradients in the order of ``leaves``."""

    groups: FieldGroups
    leaves: Sequence[Tensor]
    inputs: Features
    hidden: Float32

    def __call__(self, to_hidden: Float32 | None, to_wide: Float32 | None) -> list[Float32]:
        rows, kernel, bias = self.leaves[:3]
        # Clearing memory and reading it again takes a tenth of the time of the gradients, so rows
        # that are written only once are not cleared first.
        each_once = to_hidden is not None and has_each_row_once(
            self.groups, rows.value, self.inputs
        )
        to_rows = (buffers.empty if each_once else buffers.zeros)(rows.shape)
        to_kernel = buffers.zeros(kernel.shape)
        to_bias = np.zeros(bias.shape, dtype=np.float32)
        if to_hidden is not None:
            gradient = buffers.empty(self.hidden.shape)
            network.relu_gradient(to_hidden, self.hidden, gradient, to_bias)
            self._project(gradient, to_rows, to_kernel, each_once=each_once)
        if len(self.leaves) == 3:
            return [to_rows, to_kernel, to_bias]
        plain = np.zeros(len(self.inputs), np.float32) if to_wide is None else to_wide.reshape(-1)
        projection_gradients.add_wide_gradient(plain, *group_arrays(self.groups), to_rows)
        return [to_rows, to_kernel, to_bias, plain.sum(keepdims=True)]

    def _project(
        self, gradient: Float32, to_rows: Float32, to_kernel: Float32, *, each_once: bool
    ) -> None:
        rows, kernel = self.leaves[0].value, self.leaves[1].value
        dense = read_only(self.inputs.dense)
        embedded_columns = len(kernel) - dense.shape[1]
        projection_gradients.project_gradients(
            gradient,
            read_only(rows),
            *group_arrays(self.groups),
            np.ascontiguousarray(kernel[:embedded_columns].T),
            to_rows,
            to_kernel,
            each_once,
        )
        if dense.shape[1]:
            every = np.arange(len(dense), dtype=np.int32)
            projection_gradients.add_outer_products(
                dense, every, 0, gradient, every, to_kernel, embedded_columns
            )
