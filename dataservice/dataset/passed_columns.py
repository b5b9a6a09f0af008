"""What is known of columns that a function returns as it was given them, and NumPy does not tell.

Knows arrays and the batch that they were made of, nothing of functions or plans. Invariant: what is
not the very array that was given is taken for what it says itself.
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


def as_given(
    batch: pa.RecordBatch,
    given: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    extended: Collection[str] = (),
) -> tuple[Mapping[str, Any], dict[str, pa.DataType]]:
    """`returned` with the nulls of columns that a function returns as it was given them, under any
    name, and the types of those that do not tell them. `extended`: columns of extension types.
    """
    unwritten = _unwritten(given, extended)
    kinds = _kinds(batch, given, returned, extended)
    passed = _with_nulls_of(batch, given, returned, unwritten)
    passed = {
        name: batch.column(unwritten[id(values)]) if id(values) in unwritten else values
        for name, values in passed.items()
    }
    return passed, {
        name: kind for name, kind in kinds.items() if not isinstance(passed[name], pa.Array)
    }


def _unwritten(given: Mapping[str, np.ndarray], extended: Collection[str]) -> dict[int, int]:
    """The numbers of the columns that are views of Arrow's memory, which no function can write
    into, by the identity of their arrays. Of wide rows most columns only pass through functions,
    and making each anew would be the larger part of the time.
    """
    return {
        id(values): number
        for number, (name, values) in enumerate(given.items())
        if type(values) is np.ndarray
        and not values.flags.writeable
        and values.dtype in PLAIN
        and values.ndim == 1
        and name not in extended
    }


def _kinds(
    batch: pa.RecordBatch,
    given: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    extended: Collection[str],
) -> dict[str, pa.DataType]:
    """Of plain numbers NumPy tells the type itself; of decimals, times with a zone, optional
    strings, nested values the few of a batch do not, and of `extended` it knows the storage.
    """
    kinds = {
        id(values): batch.column(name).type
        for name, values in given.items()
        if not isinstance(values, UntouchedColumn)
        and (values.dtype not in PLAIN or values.ndim > 1 or name in extended)
    }
    return {name: kinds[id(values)] for name, values in returned.items() if id(values) in kinds}


def _with_nulls_of(
    batch: pa.RecordBatch,
    given: Mapping[str, np.ndarray],
    returned: Mapping[str, Any],
    unwritten: Collection[int],
) -> Mapping[str, Any]:
    """`returned`, where NaN in columns of `given` that stands for a null is null again.

    Other NaN, and what the function has written, are values.
    """
    columns = {
        id(values): batch.column(name)
        for name, values in given.items()
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
    """Whether nulls of floats are among its values, however deep."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_null_floats(column.storage)
    if pa.types.is_floating(kind):
        return column.null_count > 0  # type: ignore[no-any-return]
    return _holds_floats(kind) and any(map(_has_null_floats, children_of(column)))


def _holds_floats(kind: pa.DataType) -> bool:
    """Whether floats are inside of a nested type; in maps Python has them, with None for null."""
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
    """`made` with the nulls of `column`, as far as its lists are as long as they were."""
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
    """Whether both have the same children, of the same lengths."""
    if pa.types.is_struct(made.type):
        return made.type.equals(column.type)  # type: ignore[no-any-return]
    from pyarrow import compute  # here, for few tables have such lists

    lengths = compute.list_value_length
    return lengths(made).equals(lengths(column))  # type: ignore[no-any-return]


def _lost(values: np.ndarray, column: pa.Array) -> np.ndarray:
    """Where NaN stands for a null."""
    return column.is_null().to_numpy(zero_copy_only=False) & np.isnan(values)
