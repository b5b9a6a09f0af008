"""The operator that adds or replaces one column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import NumpyViews, to_arrow
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import FunctionOperator
from dataservice.dataset.passed_columns import as_given
from dataservice.dataset.stream import RunContext, Transform
from dataservice.errors import InvalidTypeError, SchemaError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class WithColumn(FunctionOperator):
    """Sets column `name` to an expression, or to a function of all columns to one array.

    An existing column keeps its place, a new one comes last.
    """

    kind: ClassVar[str] = "with_column"
    name: str
    function: Function

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.name, str) or not self.name:
            raise InvalidTypeError(f"with_column takes a column name, got {self.name!r}")
        object.__setattr__(self, "function", Function.of(self.function, "with_column"))

    def transform(self, context: RunContext) -> Transform:
        compute = self._compute(context)

        def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
            values = compute(batch, location)
            index = batch.schema.get_field_index(self.name)
            if index < 0:
                return batch.append_column(self.name, values)
            return batch.set_column(index, self.name, values)

        return apply

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return super().sample(context.sampling() if self.function.expression is None else context)

    def _compute(self, context: RunContext) -> Callable[..., pa.Array]:
        expression = self.function.expression
        if expression is not None:
            return lambda batch, _location: expression.evaluate(batch)
        function = self.function.load(context.allow_functions)
        views = NumpyViews(for_function=True)

        def compute(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.Array:
            given = views.of(batch)
            result = call_user(function, dict(given), "with_column", location)
            passed, kinds = as_given(batch, given, {self.name: result}, views.extended)
            values = to_arrow(passed[self.name], self.name, kinds.get(self.name))
            if len(values) != batch.num_rows:
                raise SchemaError(
                    f"the function given to with_column({self.name!r}) returned {len(values)} "
                    f"values for {batch.num_rows} rows"
                )
            return values

        return compute
