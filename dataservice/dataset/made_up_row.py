"""A made-up row of a schema, on which functions of rows are tried if there are no real rows.

Knows Arrow types, nothing of functions or plans. Invariant: each value is one that its column may
hold: a one, as a number, text or time, since functions may divide by a value.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pyarrow as pa

_ONES: Final = (1, True, "1", b"1")


def made_up_row(schema: pa.Schema) -> pa.RecordBatch:
    """Returns one row of these columns; null in columns whose type no plain value fits."""
    arrays = [_column(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _column(kind.storage_type))
    try:
        return pa.array([_value(kind)], kind)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.nulls(1, kind)


def _value(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: _value(field.type) for field in kind.fields}
    if types.is_map(kind):
        return [(_value(kind.key_type), _value(kind.item_type))]
    if types.is_fixed_size_list(kind):
        return [_value(kind.value_type)] * kind.list_size
    if types.is_fixed_size_binary(kind):
        return b"1" * kind.byte_width
    if types.is_nested(kind) and not types.is_union(kind):
        return [_value(kind.value_type)]
    for value in _ONES:
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
            return pa.array([value], kind)[0].as_py()
    return None
