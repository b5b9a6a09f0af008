"""Operators that run a user's function on whole record batches: map and flat_map.

Invariant: all batches of one stream have one schema, the declared one or that of the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import from_numpy, of_values
from dataservice.dataset.columns import conform, made_up_row, no_rows, require_distinct
from dataservice.dataset.function import Function, call_user, call_user_per_row
from dataservice.dataset.node import Node, register_node, rows_of_known
from dataservice.dataset.numpy_views import NumpyViews, to_rows
from dataservice.dataset.operators.inferred import InferringOperator
from dataservice.dataset.padded_columns import as_lists, declared_schema, marked, padded_names
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.dataset.stream import RunContext, Transform
from dataservice.dataset.tolerance import LEFT_OUT, RowGuard, record_failures
from dataservice.dataset.unchanged_columns import restore_unchanged
from dataservice.errors import SchemaError
from dataservice.runtime.arguments import check_choice

_Call: TypeAlias = Callable[
    [Callable[..., Any], pa.RecordBatch, Callable[[], str], "pa.Schema | None", str],
    pa.RecordBatch,
]


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Map(InferringOperator):
    """Replaces the columns by those that a function returns for them, row for row.

    Over batches (after `batch`) the function may also change the number of rows.
    """

    kind: ClassVar[str] = "map"
    # What takes an expression in place of the function.
    remedy: ClassVar[str] = (
        "; use with_column(name, expression), or map({name: expression, ...}) for all columns"
    )
    function: Function
    format: str = "numpy"
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        function = Function.code_of(self.function, self.kind, remedy=self.remedy)
        object.__setattr__(self, "function", function)
        check_choice("format", self.format, sorted(_CALLS))
        object.__setattr__(self, "schema", declared_schema(self.schema, self.kind))

    def transform(self, context: RunContext) -> Transform:
        return self._applied(self.function.load(context.allow_functions), self.one_to_one)

    def guarded(self, context: RunContext) -> Transform:
        if self.on_error == "raise" or self.format != "rows":
            return super().guarded(context)
        guard = RowGuard(self.function.load(context.allow_functions), self.kind)
        # The guard leaves out rows, so a smaller number is not an error of the function.
        apply_all = self._applied(guard, keeps_rows=False)

        def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
            guard.begin()
            result = apply_all(batch, location)
            record_failures(context, self.kind, guard.failures, location)
            return result

        return apply

    def _applied(self, function: Callable[..., Any], keeps_rows: bool) -> Transform:
        call = _CALLS[self.format]()
        kind = self.kind
        keeps_rows = keeps_rows and not self.batched
        expected = self.schema

        def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
            nonlocal expected
            result = call(function, batch, location, expected, kind)
            if keeps_rows and result.num_rows != batch.num_rows:
                raise SchemaError(
                    f"the function given to map returned {result.num_rows} rows for "
                    f"{batch.num_rows}; map keeps the number of rows: use filter to drop some, "
                    "or flat_map"
                )
            if result.num_rows:
                expected = expected or result.schema
            return result

        return apply

    def sample(self, context: RunContext) -> pa.RecordBatch:
        if self.schema is None:
            return super().sample(context.sampling())
        return rows_of_known(self.schema, super().sample, context, self.kind)

    def transform_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        is_known = self.schema is not None and not sample.num_rows
        return (
            self.empty_sample(sample, context)
            if is_known
            else super().transform_sample(sample, context)
        )

    def empty_sample(self, sample: pa.RecordBatch, context: RunContext) -> pa.RecordBatch:
        if self.schema is not None:
            return no_rows(self.schema)
        if self.format == "rows" and not sample.num_rows:
            # Without rows the function would not be called, and its columns would stay unknown.
            made_up = made_up_row(sample.schema)
            return self.transform(context)(made_up, lambda: _MADE_UP).slice(0, 0)
        return super().empty_sample(sample, context)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class FlatMap(Map):
    """As Map, but the function may return any number of rows."""

    kind: ClassVar[str] = "flat_map"
    remedy: ClassVar[str] = "; an expression has one value for each row: use map or filter"
    one_to_one: ClassVar[bool] = False


def _numpy_call() -> _Call:
    views = NumpyViews(for_function=True)

    def call(
        function: Callable[..., Any],
        batch: pa.RecordBatch,
        location: Callable[[], str],
        expected: pa.Schema | None,
        kind: str,
    ) -> pa.RecordBatch:
        given = views.of(batch)
        result = call_user(function, dict(given), kind, location)
        if not isinstance(result, Mapping) or not result:
            raise SchemaError(
                f"the function given to {kind} must return a dict of arrays, one per column; "
                f"it returned {type(result).__name__}"
                + (" without entries" if isinstance(result, Mapping) else "")
                + _hint(result)
            )
        passed, kinds = restore_unchanged(batch, given, result, views.extended)
        lists, padded = as_lists(views.padded, given, result)
        made = from_numpy({**passed, **lists}, expected, what=_returned(kind), kinds=kinds)
        return marked(made, padded, expected)

    return call


def _call_arrow(
    function: Callable[..., Any],
    batch: pa.RecordBatch,
    location: Callable[[], str],
    expected: pa.Schema | None,
    kind: str,
) -> pa.RecordBatch:
    result = call_user(function, batch, kind, location)
    if isinstance(result, pa.Table):
        combined = result.combine_chunks().to_batches()
        result = combined[0] if combined else no_rows(result.schema)
    if not isinstance(result, pa.RecordBatch):
        raise SchemaError(
            f'the function given to {kind} with format="arrow" must return a pyarrow.RecordBatch; '
            f"it returned {type(result).__name__}{_hint(result)}"
        )
    require_distinct(result.schema.names, what=_returned_batch(kind))
    plain = plain_batch(result, plain_schema(result.schema))
    made = plain if expected is None else conform(plain, expected, what=_returned(kind))
    return marked(made, padded_names(result.schema), expected)


def _call_rows(
    function: Callable[..., Any],
    batch: pa.RecordBatch,
    location: Callable[[], str],
    expected: pa.Schema | None,
    kind: str,
) -> pa.RecordBatch:
    given = to_rows(batch)
    sources = [dict(row) for row in given]  # the function may change the rows that it gets
    made = call_user_per_row(function, given, kind, location)
    kept = [row for row in made if row is not LEFT_OUT]
    rows = _flattened(kept) if kind == FlatMap.kind else kept
    if made and not rows:
        return no_rows(expected or batch.schema)
    if not rows:
        empty = no_rows(batch.schema)
        return from_numpy({}, expected) if expected is None else empty
    first = rows[0]
    for row in rows:
        if not isinstance(row, Mapping) or not row or row.keys() != first.keys():
            raise SchemaError(
                f'the function given to {kind} with format="rows" must return {_EXPECTED[kind]} '
                f"with the same keys for every row; it returned {first!r:.200} and {row!r:.200}"
                f"{_hint(row)}"
            )
    kinds = _kinds_of_passed(batch.schema, sources, made)
    try:
        built = pa.RecordBatch.from_pydict(
            {name: of_values([row[name] for row in rows], kinds.get(name)) for name in first}
        )
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaError(f"{_returned(kind)} hold values of different types: {error}") from error
    if expected is not None:
        built = conform(built, expected, what=_returned(kind))
    return marked(built, [name for name in padded_names(batch.schema) if name in kinds], expected)


def _kinds_of_passed(
    schema: pa.Schema, sources: list[dict[str, Any]], made: list[Any]
) -> dict[str, pa.DataType]:
    """Returns the types of the columns whose values the function returns unchanged."""
    pairs = [
        (row, source)
        for result, source in zip(made, sources, strict=True)
        if result is not LEFT_OUT
        for row in _flattened([result])
    ]
    return {
        field.name: field.type
        for field in schema
        if _tells_apart(field.type, [source[field.name] for source in sources])
        and all(
            isinstance(row, Mapping) and row.get(field.name, _MISSING) is source[field.name]
            for row, source in pairs
        )
    }


def _tells_apart(kind: pa.DataType, values: list[Any]) -> bool:
    """True if an identical object proves a value unchanged; Python shares small integers."""
    if not pa.types.is_integer(kind):
        return True
    known = [value for value in values if value is not None]
    return not known or any(value not in _SHARED_INTEGERS for value in known)


def _returned_batch(kind: str) -> str:
    return f"the record batch that the function given to {kind} returned"


def _returned(kind: str) -> str:
    return f"the columns that the function given to {kind} returned"


def _hint(result: Any) -> str:
    """Returns a hint for the error text if a function's `result` is one that is often meant."""
    if result is None:
        return "; end it with return"
    if isinstance(result, np.ndarray | pa.Array):
        return "; to add it as a column write with_column(name, fn)"
    if not isinstance(getattr(result, "node", None), Node):
        return ""
    return "; for a function that returns a dataset write interleave(fn, cycle_length=1)"


def _flattened(made: list[Any]) -> list[Any]:
    """Returns the rows in the results of a function that returns a row or a list of rows."""
    rows: list[Any] = []
    for result in made:
        if isinstance(result, list | tuple):
            rows.extend(result)
        else:
            rows.append(result)
    return rows


_MISSING: Final = object()
_MADE_UP: Final = (
    "a row of made-up values, to find the schema, since there is no row to try it on; state it "
    "with schema="
)
_SHARED_INTEGERS: Final = range(-5, 257)
_EXPECTED: Final = {"map": "a dict", "flat_map": "a dict or a list of dicts"}
# Each value makes the call for one stream.
_CALLS: dict[str, Callable[[], _Call]] = {
    "numpy": _numpy_call,
    "arrow": lambda: _call_arrow,
    "rows": lambda: _call_rows,
}
