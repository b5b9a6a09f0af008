"""Columns whose lists are equally long within a batch: what a function makes of them, and the mark.

A mark on the field says so, and a NumPy reader gets a 2-D array then. Knows batches and arrays,
nothing of plans. Invariant: the mark is on lists that are equally long in each batch, and only as
long as the batch stays one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import to_arrow
from dataservice.dataset.numpy_views import PADDED, is_padded
from dataservice.dataset.plain_types import plain_schema


def padded_names(schema: pa.Schema) -> list[str]:
    """The columns that bear the mark."""
    return [field.name for field in schema if is_padded(field)]


def as_lists(
    padded: Collection[str], given: Mapping[str, np.ndarray], returned: Mapping[str, Any]
) -> tuple[dict[str, pa.Array], list[str]]:
    """Lists, whose type is the same for any length, in place of what a function made of `padded`
    columns that has more dimensions; and the names of these and of padded columns it passed on.
    """
    if not padded:
        return {}, []
    passed = {id(given[name]) for name in padded}
    others = {id(values) for values in given.values()}
    made = {
        name: _lists(values, name)
        for name, values in returned.items()
        if isinstance(values, np.ndarray) and values.ndim > 1 and id(values) not in others
    }
    return made, [name for name, v in returned.items() if name in made or id(v) in passed]


def marked(
    batch: pa.RecordBatch, names: Collection[str], expected: pa.Schema | None = None
) -> pa.RecordBatch:
    """`batch` with the mark on those of the columns that are lists, and equally long.

    On none that has no mark in the schema `expected`.
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


def plain_schema_with_marks(schema: pa.Schema) -> pa.Schema:
    """As `plain_schema`, which leaves out all metadata, but for the mark."""
    names = padded_names(schema)
    plain = plain_schema(schema)
    return pa.schema([f.with_metadata(PADDED) if f.name in names else f for f in plain])


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` for a place where it may become parts of others."""
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
