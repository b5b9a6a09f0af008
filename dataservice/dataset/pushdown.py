"""Conditions as Arrow expressions that are checked against the statistics of Parquet row groups.

Responsible for choosing the conditions for which that is correct. Invariant: a condition, or its
negation, is converted only if a row group that its statistics rule out has no row for which the
condition is true. Statistics ignore NaN, so comparisons that NaN makes true are not converted.
"""

from __future__ import annotations

import enum
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dataservice.dataset.expression_kernels import OPERATIONS, members
from dataservice.dataset.expressions import Expression


class _Wanted(enum.Enum):
    """The outcome of a part of a condition for which rows are kept."""

    TRUE = enum.auto()
    FALSE = enum.auto()
    ANY = enum.auto()


_INVERTED: Final = {
    _Wanted.TRUE: _Wanted.FALSE,
    _Wanted.FALSE: _Wanted.TRUE,
    _Wanted.ANY: _Wanted.ANY,
}
_CONNECTIVES: Final = frozenset({"and", "or", "not"})
# The outcome of a comparison with NaN.
_OF_NAN: Final = {
    "eq": _Wanted.FALSE,
    "ne": _Wanted.TRUE,
    "lt": _Wanted.FALSE,
    "le": _Wanted.FALSE,
    "gt": _Wanted.FALSE,
    "ge": _Wanted.FALSE,
    "is_in": _Wanted.FALSE,
}


def statistics_conditions(condition: Expression, schema: pa.Schema) -> list[pc.Expression]:
    """Converts those parts joined by `&` that statistics can answer, for rows of `schema`."""
    built = (_built(part, schema, _Wanted.TRUE) for part in condition.conjuncts())
    return [part for part in built if part is not None]


def _built(expression: Expression, schema: pa.Schema, wanted: _Wanted) -> pc.Expression | None:
    """Converts to Arrow; None if Arrow has no equivalent, or NaN may have the wanted outcome."""
    if expression.name == "col":
        return _field(expression.parameters[0], schema)
    if expression.name == "lit":
        return pc.scalar(expression.scalar())
    if expression.name == "is_in":
        return _membership(expression, schema, wanted)
    build = OPERATIONS[expression.name].push_down
    if build is None or _may_keep_nan(expression, schema, wanted):
        return None
    if expression.name == "not":
        inner = _INVERTED[wanted]
    else:
        inner = wanted if expression.name in _CONNECTIVES else _Wanted.ANY
    arguments = [_built(argument, schema, inner) for argument in expression.arguments]
    if any(argument is None for argument in arguments):
        return None
    return build(*arguments, *expression.parameters)


def _field(name: str, schema: pa.Schema) -> pc.Expression | None:
    """Returns the column; None for half floats, which Arrow cannot compare."""
    return None if pa.types.is_float16(schema.field(name).type) else pc.field(name)


def _membership(expression: Expression, schema: pa.Schema, wanted: _Wanted) -> pc.Expression | None:
    (argument,), (listed,) = expression.arguments, expression.parameters
    lists_nan = any(_is_nan(value) for value in listed)
    if argument.name != "col" or lists_nan or _may_keep_nan(expression, schema, wanted):
        return None
    name = argument.parameters[0]
    field = _field(name, schema)
    return None if field is None else field.isin(members(schema.field(name).type, listed))


def _may_keep_nan(expression: Expression, schema: pa.Schema, wanted: _Wanted) -> bool:
    of_nan = _OF_NAN.get(expression.name)
    return (
        wanted in (of_nan, _Wanted.ANY) and of_nan is not None and _may_be_nan(expression, schema)
    )


def _may_be_nan(expression: Expression, schema: pa.Schema) -> bool:
    """True if a value of the expression that is compared may be NaN."""
    if expression.name == "col":
        return pa.types.is_floating(schema.field(expression.parameters[0]).type)
    if expression.name == "lit":
        return _is_nan(expression.parameters[0])
    return any(_may_be_nan(argument, schema) for argument in expression.arguments)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
