"""A batch's ids grouped by field, once for all that a step does with the rows they stand for.

Knows nothing of variables or of where rows are. Invariant: read-only once made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.kernels import fields as kernels


class FieldGroups(NamedTuple):
    """Names as in ``pstrain.kernels.fields``; ``order``: int32, the row of each distinct id."""

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    middles: NDArray[np.int64]
    repeated: NDArray[np.int32]
    examples: NDArray[np.int32]
    firsts: NDArray[np.int32]
    ends: NDArray[np.int32]

    def inverse(self) -> NDArray[np.int32]:
        """int32 [n * fields]: the row that each example has in each field, example by example."""
        fields, size = self.repeated.shape
        inverse = buffers.empty((size, fields)).view(np.int32)
        kernels.rows_of_examples(
            self.order, self.starts, self.examples, self.firsts, self.ends, inverse
        )
        return inverse.reshape(-1)


def group_by_field(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], FieldGroups]:
    """Distinct ids of field after field, and groups in which they are the rows, in that order.

    ``ids``: [n, fields]. An id that several fields have is there for each of them.
    """
    size, fields = ids.shape
    distinct = np.empty(ids.size, np.int64)
    starts, middles = np.empty(fields + 1, np.int64), np.empty(fields, np.int64)
    numbers = buffers.empty((4 * ids.size + 2,)).view(np.int32)
    repeated, examples = numbers[: ids.size].reshape(fields, size), numbers[ids.size : 2 * ids.size]
    firsts, ends = numbers[2 * ids.size :].reshape(2, ids.size + 1)
    count = 1 + kernels.group_by_field(
        ids, distinct, starts, middles, repeated, examples, firsts, ends
    )
    distinct = distinct[: starts[-1]]
    order = np.arange(len(distinct), dtype=np.int32)
    groups = FieldGroups(order, starts, middles, repeated, examples, firsts[:count], ends[:count])
    return distinct, groups


def group_rows(inverse: NDArray[np.int32], fields: int) -> FieldGroups:
    """Groups of rows that were looked up without regard to fields; see ``FieldGroups.inverse``."""
    distinct, groups = group_by_field(inverse.reshape(-1, fields).astype(np.int64))
    return groups._replace(order=distinct.astype(np.int32))
