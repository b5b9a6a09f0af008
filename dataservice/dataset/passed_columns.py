"""What is known of columns that a function returns as it was given them, and NumPy does not tell.

Knows arrays and the batch that they were made of, nothing of functions or plans. Invariant: what is
not the very array that was given is taken for what it says itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import PLAIN
from dataservice.dataset.untouched import UntouchedColumn


def kinds_of_passed(
    batch: pa.RecordBatch,
    given: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    extended: Collection[str] = (),
) -> dict[str, pa.DataType]:
    """The types of columns that a function returns as it was given them, under any name.

    Of plain numbers NumPy tells the type itself; of decimals, times with a zone, optional strings,
    nested values the few of a batch do not, and of the columns `extended` it knows the storage.
    """
    kinds = {
        id(values): batch.column(name).type
        for name, values in given.items()
        if not isinstance(values, UntouchedColumn)
        and ((values.dtype not in PLAIN and values.ndim == 1) or name in extended)
    }
    return {name: kinds[id(values)] for name, values in returned.items() if id(values) in kinds}


def nulls_of_passed(
    batch: pa.RecordBatch, given: Mapping[str, np.ndarray], returned: Mapping[str, Any]
) -> Mapping[str, Any]:
    """`returned`, where NaN in columns that a function returns as it was given them is null again.

    Only where it stands for a null: other NaN, and what the function has written, are values.
    """
    nulls = {
        id(values): batch.column(name)
        for name, values in given.items()
        if not isinstance(values, UntouchedColumn)
        and values.dtype.kind == "f"
        and values.ndim == 1
        and values.flags.writeable  # not a view of a column, which has no nulls
    }
    lists = {
        id(values): batch.column(name)
        for name, values in given.items()
        if not isinstance(values, UntouchedColumn) and _has_null_floats(batch.column(name))
    }
    if not nulls and not lists:
        return returned
    return {
        name: _with_nulls(values, nulls[id(values)])
        if id(values) in nulls
        else _lists_with_nulls(values, lists[id(values)])
        if id(values) in lists
        else values
        for name, values in returned.items()
    }


def _has_null_floats(column: pa.Array) -> bool:
    """Whether it has lists of floats that hold nulls."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return pa.types.is_floating(kind.value_type) and column.flatten().null_count > 0


def _lists_with_nulls(values: np.ndarray, column: pa.Array) -> Any:
    """As `_with_nulls`, where the lists are as long as they were."""
    try:
        made = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError):
        return values  # the function has put something else into it
    if not made.value_lengths().equals(column.value_lengths()):
        return made
    flat = made.flatten().to_numpy(zero_copy_only=False)
    return type(made).from_arrays(
        made.offsets,
        pa.array(_with_nulls(flat, column.flatten())),
        type=made.type,
        mask=made.is_null() if made.null_count else None,
    )


def _with_nulls(values: np.ndarray, column: pa.Array) -> np.ndarray:
    stood_for = column.is_null().to_numpy(zero_copy_only=False) & np.isnan(values)
    return np.ma.MaskedArray(values, mask=stood_for)
