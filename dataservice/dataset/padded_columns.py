"""Padded columns, whose lists are equally long within a batch: their mark, and results for them.

A mark in the metadata of the field says that a column is padded; a NumPy reader then gets a 2-D
array. Knows batches and arrays, nothing of plans. Invariant: only columns whose lists are equally
long in each batch are marked, and only while the batch is not taken apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import to_arrow
from dataservice.dataset.columns import require_distinct
from dataservice.dataset.numpy_views import PADDED, is_padded
from dataservice.dataset.plain_types import plain_schema
from dataservice.errors import InvalidTypeError


def padded_names(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns that have the mark."""
    return [field.name for field in schema if is_padded(field)]


def as_lists(
    padded: Collection[str], inputs: Mapping[str, np.ndarray], returned: Mapping[str, Any]
) -> tuple[dict[str, pa.Array], list[str]]:
    """Converts n-D arrays that a function made from a batch with `padded` columns to lists.

    The type of lists is the same for any length. Also returns the names of these columns and of
    the padded columns that the function returned unchanged.
    """
    if not padded:
        return {}, []
    passed = {id(inputs[name]) for name in padded}
    others = {id(values) for values in inputs.values()}
    made = {
        name: _lists(values, name)
        for name, values in returned.items()
        if isinstance(values, np.ndarray) and values.ndim > 1 and id(values) not in others
    }
    return made, [name for name, v in returned.items() if name in made or id(v) in passed]


def marked(
    batch: pa.RecordBatch, names: Collection[str], expected: pa.Schema | None = None
) -> pa.RecordBatch:
    """Returns `batch` with the mark on those of the named columns that are equally long lists.

    With `expected`, only columns that have the mark in that schema are marked.
    """
    if not names:
        return batch
    if expected is not None:
        names = set(names).intersection(padded_names(expected))
    fields = [
        field.with_metadata(PADDED) if field.name in names and _equally_long(column) else field
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    if not any(map(is_padded, fields)):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def declared_schema(schema: Any, operator: str) -> pa.Schema | None:
    """Returns the schema that a user gave to an operator, in plain types; None for None."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise InvalidTypeError(f"schema must be a pyarrow.Schema, got {schema!r}")
    require_distinct(schema.names, what=f"the schema given to {operator}")
    return plain_schema_with_marks(schema)


def plain_schema_with_marks(schema: pa.Schema) -> pa.Schema:
    """Returns the `plain_schema`, which has no metadata, but with the marks kept."""
    names = padded_names(schema)
    plain = plain_schema(schema)
    return pa.schema([f.with_metadata(PADDED) if f.name in names else f for f in plain])


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns `batch` without marks, so that it may be taken apart."""
    names = padded_names(batch.schema)
    if not names:
        return batch
    fields = [f.remove_metadata() if f.name in names else f for f in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def _lists(values: np.ndarray, name: str) -> pa.Array:
    rows, width = values.shape[:2]
    flat = to_arrow(values.reshape(rows * width, *values.shape[2:]), name)
    offsets = pa.array(np.arange(rows + 1) * width, pa.int32())
    return pa.ListArray.from_arrays(offsets, flat)


def _equally_long(column: pa.Array) -> bool:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return False
    lengths = np.diff(column.offsets.to_numpy())
    return not column.null_count and not np.any(lengths != lengths[:1])
