"""Restores what NumPy loses of columns that a function returns unchanged: their nulls and types.

Knows arrays and the batch that they were made from, nothing of functions or plans. Invariant: only
an array that is the same object as a given one is restored; any other array is taken at face value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import PLAIN, to_arrow
from dataservice.dataset.nested_arrays import children_of, put_together
from dataservice.dataset.untouched import UntouchedColumn
from dataservice.errors import SchemaError


def restore_unchanged(
    batch: pa.RecordBatch,
    inputs: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    extended: Collection[str] = (),
) -> tuple[Mapping[str, Any], dict[str, pa.DataType]]:
    """Restores the nulls of columns that a function returned unchanged, under any name.

    Returns the columns, and the types of those whose arrays do not tell them. `extended` names the
    columns of extension types.
    """
    unwritten = _unwritten(inputs, extended)
    kinds = _kinds(batch, inputs, returned, extended)
    passed = _with_nulls_of(batch, inputs, returned, unwritten)
    passed = {
        name: batch.column(unwritten[id(values)]) if id(values) in unwritten else values
        for name, values in passed.items()
    }
    return passed, {
        name: kind for name, kind in kinds.items() if not isinstance(passed[name], pa.Array)
    }


def _unwritten(inputs: Mapping[str, np.ndarray], extended: Collection[str]) -> dict[int, int]:
    """Returns the indices of columns that are views of Arrow's memory, by the id of their arrays.

    No function can write into them, so they are passed on as they are: most columns of wide rows
    only pass through functions, and converting each back would take most of the time.
    """
    return {
        id(values): number
        for number, (name, values) in enumerate(inputs.items())
        if type(values) is np.ndarray
        and not values.flags.writeable
        and values.dtype in PLAIN
        and values.ndim == 1
        and name not in extended
    }


def _kinds(
    batch: pa.RecordBatch,
    inputs: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    extended: Collection[str],
) -> dict[str, pa.DataType]:
    """Returns the types of returned columns that NumPy arrays do not tell.

    Arrays of plain numbers tell their type. For decimals, times with a zone, optional strings and
    nested values, the few values of a batch do not; for `extended` columns NumPy has the storage.
    """
    kinds = {
        id(values): batch.column(name).type
        for name, values in inputs.items()
        if not isinstance(values, UntouchedColumn)
        and (values.dtype not in PLAIN or values.ndim > 1 or name in extended)
    }
    return {name: kinds[id(values)] for name, values in returned.items() if id(values) in kinds}


def _with_nulls_of(
    batch: pa.RecordBatch,
    inputs: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    unwritten: Collection[int],
) -> Mapping[str, Any]:
    """Returns `returned` with nulls again where NaN in columns of `inputs` stands for a null.

    Other NaN, and values that the function has written, stay values.
    """
    columns = {
        id(values): batch.column(name)
        for name, values in inputs.items()
        if id(values) not in unwritten
        and not isinstance(values, UntouchedColumn)
        and _has_null_floats(batch.column(name))
    }
    if not columns:
        return returned
    return {
        name: _with_nulls(values, columns[id(values)], name) if id(values) in columns else values
        for name, values in returned.items()
    }


def _has_null_floats(column: pa.Array) -> bool:
    """True if the column holds nulls of floats, at any depth."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_null_floats(column.storage)
    if pa.types.is_floating(kind):
        return column.null_count > 0
    return _holds_floats(kind) and any(map(_has_null_floats, children_of(column)))


def _holds_floats(kind: pa.DataType) -> bool:
    """True if a nested type holds floats, except in maps, where a null is None in Python."""
    if not pa.types.is_nested(kind) or pa.types.is_map(kind) or pa.types.is_union(kind):
        return False
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return any(pa.types.is_floating(child) or _holds_floats(child) for child in inner)


def _with_nulls(values: np.ndarray, column: pa.Array, name: str) -> Any:
    if pa.types.is_floating(column.type):
        return np.ma.MaskedArray(values, mask=_lost(values, column))
    try:
        made = to_arrow(values, name, column.type)
    except SchemaError:
        return values  # the function has put something else into it
    return _restored(made, column)


def _restored(made: pa.Array, column: pa.Array) -> pa.Array:
    """Returns `made` with the nulls of `column`, as far as its lists have the same lengths."""
    kind = made.type
    if isinstance(column.type, pa.BaseExtensionType):
        if not kind.equals(column.type):
            return made
        return pa.ExtensionArray.from_storage(kind, _restored(made.storage, column.storage))
    if pa.types.is_floating(kind):
        values = made.to_numpy(zero_copy_only=False)
        nulls = made.is_null().to_numpy(zero_copy_only=False)
        return pa.array(values, kind, mask=nulls | _lost(values, column))
    if not _holds_floats(kind) or not _has_shape_of(made, column):
        return made
    pairs = zip(children_of(made), children_of(column), strict=True)
    return put_together(made, [_restored(child, other) for child, other in pairs], kind)


def _has_shape_of(made: pa.Array, column: pa.Array) -> bool:
    """True if both have the same children, of the same lengths."""
    if pa.types.is_struct(made.type):
        return made.type.equals(column.type)
    from pyarrow import compute  # imported here, since few tables have such lists

    lengths = compute.list_value_length
    return lengths(made).equals(lengths(column))


def _lost(values: np.ndarray, column: pa.Array) -> np.ndarray:
    """Returns a mask of the values that are NaN and stand for a null of the column."""
    return column.is_null().to_numpy(zero_copy_only=False) & np.isnan(values)
