"""The key or length that grouping operators compute for each element.

It comes from a column, an expression or a function. Knows nothing of windows. Invariant: one
integer per element; an element that is a batch has one integer for all its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataservice.dataset.columns import require_columns
from dataservice.dataset.expressions import col
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.numpy_views import to_function
from dataservice.dataset.operators.windows import KeysOf
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidTypeError, SchemaError


def key_function(value: Any, operator: str) -> Function:
    """Returns the Function of a column name, expression, function or "module:function" name."""
    if isinstance(value, str) and ":" not in value:
        if not value:
            raise InvalidTypeError(f"{operator} takes a column name, got {value!r}")
        return Function.of(col(value))
    return Function.of(value, operator)


def keys_of(
    function: Function, operator: str, context: RunContext, *, whole_batches: bool, lengths: bool
) -> KeysOf:
    """Returns a function that computes the integers of a batch's elements.

    With `lengths`, a list that an expression yields counts as its length.
    """
    expression = function.expression
    call = None if expression is not None else function.load(context.allow_functions)

    def compute(batch: pa.RecordBatch, location: Callable[[], str]) -> np.ndarray:
        if expression is not None:
            require_columns(sorted(expression.columns()), batch.schema.names, what=operator)
            array = expression.evaluate(batch)
            nested = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
            result: Any = pc.list_value_length(array) if lengths and nested else array
            if result.null_count:
                raise SchemaError(f"{operator}: {expression!r} is null for some rows")
            result = result.to_numpy(zero_copy_only=False)
        else:
            result = call_user(call, to_function(batch), operator, location)  # type: ignore[arg-type]
        return _integers(result, batch.num_rows, operator, whole_batches)

    return compute


def _integers(result: Any, rows: int, operator: str, whole_batches: bool) -> np.ndarray:
    values = np.asarray(result)
    if values.dtype.kind not in "iub":
        raise SchemaError(
            f"{operator}: the function must return an integer for each element, it returned "
            f"{values.dtype} of shape {values.shape}"
        )
    if whole_batches:
        if values.size == 0 or (values != values.flat[0]).any():
            raise SchemaError(
                f"{operator}: an element is a batch here, and its rows have several keys; return "
                "one integer for the batch"
            )
        return values.reshape(-1)[:1].astype(np.int64)
    if values.shape != (rows,):
        raise SchemaError(
            f"{operator}: the function must return one integer for each of {rows} rows, it "
            f"returned shape {values.shape}"
        )
    return values.astype(np.int64)
