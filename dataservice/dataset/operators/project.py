"""The operator that replaces the columns by expressions over them: `map` with a dict of these.

Invariant: row i of its output is made of row i of its input, without a user's function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.columns import conform
from dataservice.dataset.expressions import Expression
from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import RowOperator
from dataservice.dataset.padded_columns import declared_schema
from dataservice.dataset.stream import RunContext, Transform
from dataservice.errors import InvalidTypeError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Project(RowOperator):
    """Replaces the columns by those that `expressions` give by name, of the types in `schema`."""

    kind: ClassVar[str] = "project"
    expressions: Mapping[str, Expression]
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        given = self.expressions
        if not isinstance(given, Mapping) or not given:
            raise InvalidTypeError(f"map takes a dict of expressions by column, got {given!r}")
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, Expression):
                raise InvalidTypeError(
                    "map takes a dict of expressions by column, such as "
                    f"{{'x': ds.col('a') + 1, 'one': ds.lit(1)}}; got {value!r:.200} for {name!r}"
                )
        object.__setattr__(self, "expressions", dict(given))
        object.__setattr__(self, "schema", declared_schema(self.schema, "map"))

    @property
    def lacks_schema(self) -> bool:
        return False  # the types of its input tell those of its expressions

    @property
    def reads(self) -> frozenset[str]:
        """The names of the columns that the expressions read."""
        return frozenset().union(*(each.columns() for each in self.expressions.values()))

    @property
    def ignores_batches(self) -> bool:
        return True

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        def apply(batch: pa.RecordBatch, _location: Callable[[], str]) -> pa.RecordBatch:
            columns = [_column(batch, name, each) for name, each in self.expressions.items()]
            arrays, fields = zip(*columns, strict=True)
            made = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
            what = "the expressions given to map"
            return made if self.schema is None else conform(made, self.schema, what=what)

        return apply


def _column(batch: pa.RecordBatch, name: str, expression: Expression) -> tuple[pa.Array, pa.Field]:
    """Returns the values of an expression; a mere column keeps its marks, such as of padding."""
    values = expression.evaluate(batch)
    if expression.name == "col":
        return values, batch.schema.field(expression.parameters[0]).with_name(name)
    return values, pa.field(name, values.type)
