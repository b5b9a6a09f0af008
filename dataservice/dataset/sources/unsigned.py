"""Integers in text files that are larger than int64, which Arrow infers as floats.

They must be read as uint64, because the nearest float may be another number. Knows types and
values, not how a format stores them. Invariant: a column is read as uint64 only if every value of
the first block is a uint64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from dataservice.runtime.number_arrays import scalar_of

_FIRST_UNSIGNED: Final = 2.0**63


def with_unsigned(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], fits: Callable[[pa.Field], bool]
) -> pa.Schema:
    """Returns the schema inferred from `batches`, with uint64 for floats that are large integers.

    `fits` reads the first rows again, with one column as the given field, and tells whether that
    succeeds.
    """
    if not any(pa.types.is_float64(kind) for kind in schema.types):
        return schema
    first = next(iter(batches), None)
    for index, field in enumerate(schema):
        unsigned = pa.field(field.name, pa.uint64())
        if first is not None and _is_large(first.column(index)) and fits(unsigned):
            schema = schema.set(index, unsigned)
    return schema


def _is_large(column: pa.Array) -> bool:
    if not pa.types.is_float64(column.type):
        return False
    from pyarrow import compute  # imported here, because few files have a column of floats

    limit = scalar_of(_FIRST_UNSIGNED, column.type)
    return bool(compute.any(compute.greater_equal(column, limit)).as_py())
