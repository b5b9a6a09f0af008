"""Sets rows by ids of several axes: the last axis selects rows within each element of the others.

Reads and writes no variable. Invariant: ids and values that ``scatter_update`` would refuse are
refused here too, before anything changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.variables.rows import check_kind

Array = NDArray[Any]


def set_rows(current: Array, ids: Array, values: Any, name: str) -> None:
    """Sets rows ``ids`` of ``current``, the values of variable ``name``, in place.

    All axes of ``ids`` but the last must be the first axes of ``current``.
    """
    batch = ids.shape[:-1]
    if batch != current.shape[: len(batch)] or current.ndim < ids.ndim:
        raise InvalidArgumentError(
            f"ids of shape {ids.shape} do not fit variable {name!r} of shape {current.shape}: all "
            "axes but the last must be the same"
        )
    _check_ids(ids, current.shape[len(batch)], name)
    array = np.asarray(values)
    check_kind(array, current.dtype.name, name)
    lead = np.meshgrid(*(np.arange(n) for n in ids.shape), indexing="ij")[:-1]
    current[(*lead, ids.astype(np.int64))] = array


def _check_ids(ids: Array, rows: int, name: str) -> None:
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise InvalidArgumentError(f"ids for variable {name!r} must be integers, got {ids.dtype}")
    outside = (ids < 0) | (ids >= rows)
    if outside.any():
        raise InvalidArgumentError(
            f"id {ids[outside][0]} is outside [0, {rows}), the rows of axis {ids.ndim - 1} of "
            f"variable {name!r}"
        )
