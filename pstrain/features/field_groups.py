"""Groups a batch's ids by field, once for all operations of a step on the rows of these ids.

Knows nothing of variables or of where rows are. Invariant: groups are read-only once made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain import buffers
from pstrain.kernels import fields as kernels


class FieldGroups(NamedTuple):
    """The groups of a batch; its arrays are described in ``pstrain.kernels.fields``.

    ``order``: int32, the row of each distinct id.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    middles: NDArray[np.int64]
    repeated: NDArray[np.int32]
    examples: NDArray[np.int32]
    firsts: NDArray[np.int32]
    ends: NDArray[np.int32]

    def inverse(self) -> NDArray[np.int32]:
        """Returns the row of each field of each example, int32 [n * fields], by example."""
        size, fields = self.repeated.shape
        inverse = buffers.empty((size, fields)).view(np.int32)
        kernels.rows_of_examples(
            self.order, self.starts, self.examples, self.firsts, self.ends, inverse
        )
        return inverse.reshape(-1)


def group_by_field(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], FieldGroups]:
    """Returns the distinct ids of each field, field after field, and the groups of these ids.

    ``ids``: [n, fields]. An id that occurs in several fields is returned once per field. Row k of
    the groups is the k-th of the returned ids.
    """
    size, fields = ids.shape
    distinct = np.empty(ids.size, np.int64)
    starts, middles = np.empty(fields + 1, np.int64), np.empty(fields, np.int64)
    numbers = buffers.empty((4 * ids.size + 2,)).view(np.int32)
    repeated, examples = numbers[: ids.size].reshape(size, fields), numbers[ids.size : 2 * ids.size]
    firsts, ends = numbers[2 * ids.size :].reshape(2, ids.size + 1)
    count = 1 + kernels.group_by_field(
        ids, distinct, starts, middles, repeated, examples, firsts, ends
    )
    distinct = distinct[: starts[-1]]
    order = np.arange(len(distinct), dtype=np.int32)
    groups = FieldGroups(order, starts, middles, repeated, examples, firsts[:count], ends[:count])
    return distinct, groups


def group_rows(inverse: NDArray[np.int32], fields: int) -> FieldGroups:
    """Groups by field rows that were looked up as a whole; undoes ``FieldGroups.inverse``."""
    distinct, groups = group_by_field(inverse.reshape(-1, fields).astype(np.int64))
    return groups._replace(order=distinct.astype(np.int32))
