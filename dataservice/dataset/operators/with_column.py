"""The operator that adds or replaces one column.

Invariant: the column has one type in all batches of a stream, the declared one or that of the first
values that a function made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.arrow_arrays import to_arrow
from dataservice.dataset.columns import conform
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import register_node, rows_of_known
from dataservice.dataset.numpy_views import NumpyViews
from dataservice.dataset.operators.inferred import InferringOperator
from dataservice.dataset.padded_columns import (
    as_lists,
    marked,
    padded_names,
    plain_schema_with_marks,
)
from dataservice.dataset.stream import RunContext, Transform
from dataservice.dataset.unchanged_columns import restore_unchanged
from dataservice.errors import InvalidTypeError, MissingColumnError, SchemaError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class WithColumn(InferringOperator):
    """Sets column `name` to an expression, or to the array that a function of all columns returns.

    An existing column keeps its place; a new one comes last. `schema` has the type of that column.
    """

    kind: ClassVar[str] = "with_column"
    outside_fingerprint: ClassVar[frozenset[str]] = InferringOperator.outside_fingerprint | {
        "schema"
    }
    name: str
    function: Function
    schema: pa.Schema | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.name, str) or not self.name:
            raise InvalidTypeError(f"with_column takes a column name, got {self.name!r}")
        object.__setattr__(self, "function", Function.of(self.function, "with_column"))
        if self.schema is not None:
            object.__setattr__(self, "schema", self._own_schema(self.schema))

    def _own_schema(self, schema: Any) -> pa.Schema | None:
        """Returns the column's part of a schema; None if its type there is null."""
        if not isinstance(schema, pa.Schema):
            raise InvalidTypeError(f"schema must be a pyarrow.Schema, got {schema!r}")
        if self.name not in schema.names:
            raise MissingColumnError(
                f"the schema given to with_column({self.name!r}) has no column of that name, but "
                f"{schema.names}"
            )
        own = plain_schema_with_marks(pa.schema([schema.field(self.name)]))
        return None if pa.types.is_null(own.types[0]) else own

    @property
    def lacks_schema(self) -> bool:
        return self.schema is None and self.function.expression is None

    @property
    def ignores_batches(self) -> bool:
        return self.keeps_rows and self.function.expression is not None

    def transform(self, context: RunContext) -> Transform:
        compute = self._compute(context)
        expected = self.schema
        infers = self.lacks_schema
        what = f"the values of with_column({self.name!r})"

        def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
            nonlocal expected
            values, padded = compute(batch, location)
            if expected is not None:
                single = pa.RecordBatch.from_arrays([values], [self.name])
                values = conform(single, expected, what=what).column(0)
            result = marked(self._with_values(batch, values), padded, expected)
            if expected is None and infers and batch.num_rows:
                expected = pa.schema([result.schema.field(self.name)])
            return result

        return apply

    def _with_values(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        index = batch.schema.get_field_index(self.name)
        if index < 0:
            return batch.append_column(self.name, values)
        return batch.set_column(index, self.name, values)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        if self.function.expression is not None:
            return super().sample(context)
        if self.schema is None:
            return super().sample(context.sampling())
        nothing = self.input.sample(dataclasses.replace(context, sample_rows=0)).slice(0, 0)
        known = self._with_values(nothing, pa.nulls(0, self.schema.types[0]))
        known = marked(known, padded_names(self.schema))
        return rows_of_known(known.schema, super().sample, context, self.kind)

    def _compute(self, context: RunContext) -> Callable[..., tuple[pa.Array, list[str]]]:
        expression = self.function.expression
        if expression is not None:
            return lambda batch, _location: (expression.evaluate(batch), [])
        function = self.function.load(context.allow_functions)
        views = NumpyViews(for_function=True)

        def compute(
            batch: pa.RecordBatch, location: Callable[[], str]
        ) -> tuple[pa.Array, list[str]]:
            given = views.of(batch)
            result = call_user(function, dict(given), "with_column", location)
            returned = {self.name: result}
            passed, kinds = restore_unchanged(batch, given, returned, views.extended)
            lists, padded = as_lists(views.padded, given, returned)
            value = lists.get(self.name, passed[self.name])
            values = to_arrow(value, self.name, kinds.get(self.name))
            if len(values) != batch.num_rows:
                raise SchemaError(
                    f"the function given to with_column({self.name!r}) returned {len(values)} "
                    f"values for {batch.num_rows} rows"
                )
            return values, padded

        return compute
