"""Integers in text that are larger than int64, which Arrow takes for floats.

Knows types and values, not how a format has them. Invariant: a column is read as uint64 only where
every value of the first block is one, so that no id becomes the float that is nearest to it.
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
    """`schema`, which was inferred from the first of `batches`, with uint64 for floats that are
    none.

    `fits` reads these rows again, with a column as it is given, and says whether that can be done.
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
    from pyarrow import compute  # here, for few files have a column of floats

    limit = scalar_of(_FIRST_UNSIGNED, column.type)
    return bool(compute.any(compute.greater_equal(column, limit)).as_py())
