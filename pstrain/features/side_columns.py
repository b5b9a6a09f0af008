"""Columns of a batch that a model does not read, such as weights, and the keys of groups of rows.

Knows nothing of what they are for. Invariant: a key depends on the row's value alone, so rows of a
group have the same one on every trainer, in every type of integers or of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import DataError
from pstrain.features import columns
from pstrain.features.batches import as_batch
from pstrain.features.schema import Features
from pstrain.kernels.keys import NO_KEY


def side_column(batch: Any, name: str, role: str, argument: str) -> pa.Array:
    """Returns column ``name`` of a batch, which is one of ``role``; DataError if there is none.

    ``argument``: where the user named the column.
    """
    if isinstance(batch, Features):
        raise DataError(
            f"encoded batches have no column {name!r} of {role}: let the data yield record batches"
        )
    rows = as_batch(batch, {name})
    if name not in rows.schema.names:
        names = batch if isinstance(batch, Mapping) else rows.schema.names
        raise DataError(
            f"the data has no column {name!r} of {role}; it has {', '.join(names)}: name the right "
            f"one by {argument}"
        )
    return rows.column(name)


def group_keys(what: str, values: Any) -> NDArray[np.int64]:
    """Returns the key of each row's group, int64 [n]: the integer itself, of text its XXH64.

    ``values``: integers, booleans or text, as an array of Arrow or NumPy or a list. DataError for
    other values, and for rows without one.
    """
    column = columns.singles(as_batch({what: values}).column(0))
    if not columns.is_categorical(column.type):
        raise DataError(f"{what} hold {column.type}: cast them to integers or strings")
    keys = np.empty((len(column), 1), dtype=np.int64)
    columns.keys_into(what, column, keys, 0)
    missing = keys[:, 0] == NO_KEY
    if missing.any():
        raise DataError(
            f"{what}, row {int(np.argmax(missing))}: the row is in no group: fill nulls, or filter "
            "such rows out"
        )
    return keys[:, 0]
