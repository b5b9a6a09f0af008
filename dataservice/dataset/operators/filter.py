"""The operator that keeps the rows for which a condition is true."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import to_arrow
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import register_node
from dataservice.dataset.numpy_types import is_masked
from dataservice.dataset.numpy_views import to_function
from dataservice.dataset.operators.base import FunctionOperator
from dataservice.dataset.stream import SAMPLE_ROWS, RunContext, Transform
from dataservice.dataset.untouched import UntouchedColumn
from dataservice.errors import SchemaError
from dataservice.runtime.number_arrays import from_numbers

# Types of masks that may hold nulls, such as a boolean column that a function returns unchanged.
_WITH_NULLS: Final = (UntouchedColumn, pa.Array, pa.ChunkedArray)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Filter(FunctionOperator):
    """Keeps the rows for which an expression, or the mask that a function returns, is true.

    After `batch` it drops rows within the batches. A null condition drops its row.
    """

    kind: ClassVar[str] = "filter"
    one_to_one: ClassVar[bool] = False
    function: Function

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "function", Function.of(self.function, "filter"))

    def transform(self, context: RunContext) -> Transform:
        mask_of = self._mask(context)

        def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
            mask = mask_of(batch, location)
            return batch if mask.true_count == batch.num_rows else batch.filter(mask)

        return apply

    def transform_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        # The schema is that of the input, and the function may fail on no rows.
        if self.function.expression is None and not sample.num_rows:
            return sample
        return super().transform_sample(sample, context)

    def empty_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:  # noqa: ARG002
        # For the functions above, rows that the filter drops are better than no rows.
        return sample.slice(0, SAMPLE_ROWS)

    def _mask(self, context: RunContext) -> Callable[..., pa.BooleanArray]:
        expression = self.function.expression
        if expression is not None:
            return lambda batch, _location: expression.mask(batch)
        function = self.function.load(context.allow_functions)

        def mask_of(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.BooleanArray:
            returned = call_user(function, to_function(batch), "filter", location)
            if isinstance(returned, _WITH_NULLS) or is_masked(returned):
                return _of_rows(to_arrow(returned, "the mask"), batch.num_rows)
            mask = np.asarray(returned)
            if mask.dtype != np.bool_ or mask.shape != (batch.num_rows,):
                found = f"{mask.dtype} of shape {mask.shape}" if mask.ndim else repr(returned)
                raise SchemaError(
                    "the function given to filter must return a boolean array of "
                    f"{batch.num_rows} rows; it returned {found:.200}"
                )
            return from_numbers(mask)

        return mask_of


def _of_rows(mask: pa.Array, rows: int) -> pa.BooleanArray:
    if not pa.types.is_boolean(mask.type) or len(mask) != rows:
        raise SchemaError(
            f"the function given to filter must return a boolean array of {rows} rows; it returned "
            f"{len(mask)} of type {mask.type}"
        )
    return mask
