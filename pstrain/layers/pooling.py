"""Adds pooled rows to looked-up ones, so that every layer over fields takes lists as well.

The pooled row of a list is one more row, to which its field refers; the layers that follow see no
difference. Invariant: without lists nothing is copied and nothing recorded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.features.bags import Bags
from pstrain.features.field_groups import FieldGroups, group_rows
from pstrain.features.schema import Features
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.kernels import pooling as kernels
from pstrain.layers.base import looked_up
from pstrain.vocabulary import Lookup


class FieldRows(NamedTuple):
    """Rows, and the row of each field of each example: int32 [n * fields], or grouped by field."""

    rows: Tensor
    found: NDArray[np.int32] | FieldGroups

    @property
    def inverse(self) -> NDArray[np.int32]:
        """The row of each field of each example, int32 [n * fields].

        Computed on each access if ``found`` is grouped by field.
        """
        return self.found.inverse() if isinstance(self.found, FieldGroups) else self.found

    def groups(self, fields: int) -> FieldGroups:
        """Returns ``found`` grouped by field; computes the groups if it is not grouped."""
        return self.found if isinstance(self.found, FieldGroups) else group_rows(self.found, fields)


def field_rows(variable: Any, lookup: Lookup, inputs: Any) -> FieldRows:
    """Returns the looked-up rows of ``inputs``, and a pooled row for each of its lists."""
    rows = looked_up(variable, lookup)
    bags = inputs.bags if isinstance(inputs, Features) else None
    if bags is None:
        return FieldRows(rows, lookup.found)
    singles, inverse = inputs.ids.size, lookup.inverse
    pooled = _with_pooled(rows, inverse[singles:], bags)
    return FieldRows(pooled, _inverse(inverse[:singles], len(lookup.unique), inputs, bags))


def distinct_rows(lookup: Lookup, inputs: Features) -> tuple[int, int]:
    """Returns how many rows and ``inverse`` entries the result of :func:`field_rows` will have."""
    bags = inputs.bags
    if bags is None:
        return len(lookup.unique), inputs.ids.size
    pooled = len(bags.offsets) - 1
    return len(lookup.unique) + pooled, inputs.ids.size + pooled


_Array = NDArray[Any]


def rows_of(groups: FieldGroups) -> tuple[_Array, _Array, _Array, _Array, _Array, _Array]:
    """Returns the parts of ``groups`` that tell which examples have which row."""
    order, starts, middles, _, examples, firsts, ends = groups
    return order, starts, middles, examples, firsts, ends


def has_each_row_once(groups: FieldGroups, rows: _Array, inputs: Features) -> bool:
    """True if every row belongs to exactly one id of one field, so its gradient is written once.

    With lists this is not known: rows that are only pooled belong to no field.
    """
    return inputs.bags is None and len(groups.order) == len(rows)


def _with_pooled(rows: Tensor, inverse: NDArray[np.int32], bags: Bags) -> Tensor:
    distinct, width = rows.shape
    count = len(bags.offsets) - 1
    output = Tensor(buffers.empty((distinct + count, width)))
    output.value[:distinct] = rows.value
    kernels.pool_rows(rows.value, inverse, bags.offsets, bags.scales, output.value[distinct:])

    def backward(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        total = buffers.empty(rows.shape)
        total[...] = gradient[:distinct]
        kernels.pool_gradients(gradient[distinct:], inverse, bags.offsets, bags.scales, total)
        return total

    return record(output, (rows,), backward)


def _inverse(
    single: NDArray[np.int32], first_pooled: int, inputs: Features, bags: Bags
) -> NDArray[np.int32]:
    fields = inputs.ids.shape[1] + len(bags.fields)
    positions = np.array([f for f in range(fields) if f not in bags.fields], np.int64)
    out = np.empty((len(inputs), fields), np.int32)
    kernels.place_rows(single, positions, first_pooled, out)
    return out.reshape(-1)
