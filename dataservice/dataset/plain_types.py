"""Decodes dictionaries, runs and views, also inside nested columns: rows travel without them.

Knows Arrow types and arrays, nothing of plans or streams. Invariant: decoding changes no value and
no null; a type without these encodings stays as it is.
"""

from __future__ import annotations

import pyarrow as pa

from dataservice.dataset.nested_arrays import children_of, put_together


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns `schema` without metadata, all columns nullable and of their `plain_type`."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that dictionaries, runs or views decode to; any other type unchanged."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    nested = _plain_nested(kind) if types.is_nested(kind) else kind
    return kind if nested.equals(kind) else nested


def _plain_nested(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind.fields])
    if types.is_map(kind):
        key, item = _plain_field(kind.key_field), _plain_field(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Decodes `batch` to `schema`, which is the `plain_schema` of its own schema.

    Columns of type null, which hold no values, may have any type in `schema`.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    arrays = [
        plain_array(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decodes `array` to `kind`, the `plain_type` of its own; of type null, it becomes any type."""
    types = pa.types
    if array.type.equals(kind):
        return array
    if types.is_dictionary(array.type):
        return plain_array(array.dictionary_decode(), kind)
    if types.is_run_end_encoded(array.type):
        from pyarrow import compute  # imported here, since few tables have runs

        return plain_array(compute.run_end_decode(array), kind)
    if not types.is_nested(array.type):
        return array.cast(kind)
    # Arrow's own cast of a slice of lists of views gives wrong rows.
    children = zip(children_of(array), _child_types(kind), strict=True)
    return put_together(array, [plain_array(child, to) for child, to in children], kind)


def _child_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_struct(kind):
        return [field.type for field in kind.fields]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type]
