"""Conditions written as lists of tuples, the form that pyarrow and pandas call `filters`.

Responsible for converting that form to an expression. Pure; knows no source. Invariant: what is
not of that form is an error that names the part.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Final

from dataservice.dataset.expressions import Expression, col
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.arguments import in_words

_FORM: Final = (
    "a list of tuples (column, operator, value), which all must hold, or a list of such lists, of "
    "which one must hold"
)
_OPERATORS: Final[dict[str, Callable[[Any, Any], Expression]]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda column, values: column.is_in(values),
    "not in": lambda column, values: ~column.is_in(values),
}


def condition_of(filters: list[Any] | tuple[Any, ...]) -> Expression:
    """Returns the condition that such a list states; InvalidTypeError if it has another form."""
    if not filters:
        raise InvalidTypeError("filter is an empty list; leave it out to get all rows")
    if all(isinstance(part, list) and part for part in filters):
        return functools.reduce(operator.or_, map(_all_of, filters))
    return _all_of(filters)


def _all_of(parts: list[Any] | tuple[Any, ...]) -> Expression:
    return functools.reduce(operator.and_, map(_comparison, parts))


def _comparison(part: Any) -> Expression:
    if not isinstance(part, tuple) or len(part) != 3 or not isinstance(part[0], str):
        raise InvalidTypeError(f"filter as a list must be {_FORM}, got {part!r:.200} in it")
    name, symbol, value = part
    if symbol not in _OPERATORS:
        raise InvalidArgumentError(
            f"filter has the operator {symbol!r} in {part!r:.200}; use one of "
            f"{in_words(_OPERATORS)}"
        )
    if symbol.endswith("in") and (isinstance(value, str) or not hasattr(value, "__iter__")):
        raise InvalidTypeError(f"filter needs a list of values for {symbol!r} in {part!r:.200}")
    return _OPERATORS[symbol](col(name), value)
