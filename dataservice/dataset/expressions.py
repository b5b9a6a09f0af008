"""Expressions over columns: `col("price") / 100 > lit(3)`, written in Python, run by Arrow.

Responsible for building expressions, their JSON form and the columns that they read. Knows neither
what an operation computes (`expression_kernels`) nor which constants are allowed (`constants`).
Invariant: an expression is a value, not code; decoding it runs nothing, and only the operations in
`expression_kernels` exist. Nulls behave as in SQL: an operation on null is null, `&` and `|` are
three-valued, and a filter drops the rows for which its condition is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from dataservice.dataset import expression_kernels as kernels
from dataservice.dataset.constants import constant_of, decode_constant, encode_constant
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError
from dataservice.runtime.arguments import is_integer
from dataservice.runtime.number_arrays import scalar_of

_MAX_DEPTH: Final = 200
_COMPARISONS: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


class Expression:
    """A lazy, immutable column expression; see `col` and `lit`.

    Comparison operators build expressions, so an Expression has no truth value and is not equal
    to anything; use `&`, `|` and `~` in place of `and`, `or` and `not`.
    """

    __slots__ = ("arguments", "name", "parameters")

    def __init__(
        self, name: str, arguments: Sequence[Expression] = (), parameters: Sequence[Any] = ()
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.parameters = tuple(parameters)

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """Computes one value per row; raises SchemaError for a missing column or unfit types."""
        value = self._value(batch)
        if isinstance(value, pa.Scalar):
            return pa.repeat(value, batch.num_rows)
        return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Computes one boolean per row; raises SchemaError also if this is no condition."""
        values = self.evaluate(batch)
        if not pa.types.is_boolean(values.type):
            raise SchemaError(f"filter takes a condition, but {self!r} is of type {values.type}")
        return values

    def _value(self, batch: pa.RecordBatch) -> pa.Array | pa.Scalar:
        if self.name == "col":
            return kernels.column(batch, self.parameters[0])
        if self.name == "lit":
            return self.scalar()
        values = [argument._value(batch) for argument in self.arguments]
        try:
            return kernels.OPERATIONS[self.name].compute(*values, *self.parameters)
        except pa.ArrowException as error:
            raise SchemaError(f"cannot compute {self!r}: {error}") from error

    def columns(self) -> frozenset[str]:
        """Returns the names of the columns that the expression reads."""
        if self.name == "col":
            return frozenset((self.parameters[0],))
        return frozenset().union(*(argument.columns() for argument in self.arguments))

    def over(self, names: Mapping[str, str]) -> Expression:
        """Returns the same expression over other columns: those that `names` gives for its own."""
        if self.name == "col":
            return col(names.get(self.parameters[0], self.parameters[0]))
        arguments = [argument.over(names) for argument in self.arguments]
        return Expression(self.name, arguments, self.parameters)

    def scalar(self) -> pa.Scalar:
        """Returns the Arrow scalar of a constant: int64 for an integer, or uint64 from 2^63 on."""
        value = self.parameters[0]
        if type(value) is float:
            return scalar_of(value, pa.float64())
        if type(value) is int and -(1 << 63) <= value < 1 << 63:
            return scalar_of(value, pa.int64())
        is_large = isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63
        return pa.scalar(value, pa.uint64() if is_large else None)

    def conjuncts(self) -> list[Expression]:
        """Returns the conditions that `&` joins at the top level; [self] if there is no `&`."""
        if self.name != "and":
            return [self]
        return [part for argument in self.arguments for part in argument.conjuncts()]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON-able form."""
        encoded: dict[str, Any] = {"op": self.name}
        if self.arguments:
            encoded["args"] = [argument.to_json() for argument in self.arguments]
        if self.parameters:
            encoded["with"] = [encode_constant(value) for value in self.parameters]
        return encoded

    @classmethod
    def from_json(cls, encoded: object) -> Expression:
        """Decodes the result of `to_json`; raises InvalidArgumentError if it is malformed."""
        return _decode(encoded, 0)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value; write & for and, | for or, ~ for not, "
            "and put each condition in parentheses"
        )

    def __repr__(self) -> str:
        if self.name in ("col", "lit"):
            return f"{self.name}({self.parameters[0]!r})"
        symbol = kernels.OPERATIONS[self.name].symbol
        if symbol and len(self.arguments) == 2:
            return f"({self.arguments[0]!r} {symbol} {self.arguments[1]!r})"
        if symbol:
            return f"{symbol}{self.arguments[0]!r}"
        parameters = ", ".join(repr(value) for value in self.parameters)
        return f"{self.arguments[0]!r}.{self.name}({parameters})"

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # type checkers should still report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            methods = sorted(n for n, op in kernels.OPERATIONS.items() if not op.symbol)
            raise AttributeError(
                f"an expression has no {name!r}; it has operators and {', '.join(methods)}; for "
                "other operations give a function: filter(fn), with_column(name, fn)",
                name=name,
                obj=self,
            )

    def __add__(self, other: Any) -> Expression:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("truediv", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return _binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _binary("mod", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _binary("mod", other, self)

    def __pow__(self, other: Any) -> Expression:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Expression:
        return _binary("pow", other, self)

    def __neg__(self) -> Expression:
        return Expression("neg", (self,))

    def __abs__(self) -> Expression:
        return self.abs()

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("ne", self, other)

    def __lt__(self, other: Any) -> Expression:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary("ge", self, other)

    def __and__(self, other: Any) -> Expression:
        return _binary("and", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _binary("and", other, self)

    def __or__(self, other: Any) -> Expression:
        return _binary("or", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _binary("or", other, self)

    def __invert__(self) -> Expression:
        return Expression("not", (self,))

    def is_in(self, values: Iterable[Any]) -> Expression:
        """True for rows whose value equals one of `values`.

        `values` are of one type, without None. The result is false for null, and true for NaN if
        `values` holds NaN.
        """
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidTypeError(
                f"is_in() takes several values, as in is_in([1, 2]), got {values!r}"
            )
        listed = tuple(constant_of(value) for value in values)
        if None in listed:
            raise InvalidArgumentError("is_in() takes no None; add `| col(...).is_null()`")
        return Expression("is_in", (self,), (listed,))

    isin = is_in

    def is_null(self) -> Expression:
        """True for rows whose value is null; NaN is not null."""
        return Expression("is_null", (self,))

    def is_valid(self) -> Expression:
        """True for rows whose value is not null."""
        return Expression("is_valid", (self,))

    def cast(self, target_type: str | pa.DataType) -> Expression:
        """Casts the value to an Arrow type such as "float32"; a lossy cast is an error."""
        type_name = str(target_type)
        kernels.arrow_type(type_name)
        return Expression("cast", (self,), (type_name,))

    def log1p(self) -> Expression:
        """Computes the natural logarithm of one plus the value; NaN below -1."""
        return Expression("log1p", (self,))

    def abs(self) -> Expression:
        """Computes the absolute value."""
        return Expression("abs", (self,))

    def fill_null(self, value: Any) -> Expression:
        """Replaces nulls by `value`."""
        return Expression("fill_null", (self,), (constant_of(value),))

    def clip(self, lo: float | None = None, hi: float | None = None) -> Expression:
        """Limits the value to at least `lo` and at most `hi`; None leaves that side open."""
        bounds = constant_of(lo), constant_of(hi)
        for bound in bounds:
            if bound is not None and type(bound) not in (int, float):
                raise InvalidArgumentError(f"clip() takes numbers or None, got {bound!r}")
        return Expression("clip", (self,), bounds)

    def hash(self, buckets: int) -> Expression:
        """Hashes the value to a bucket, int64 in [0, buckets), by the algorithm of `hashing`."""
        if not is_integer(buckets) or not 0 < buckets < 2**63:
            raise InvalidArgumentError(
                f"hash() takes a positive number of buckets, got {buckets!r}"
            )
        return Expression("hash", (self,), (int(buckets),))


def col(name: str) -> Expression:
    """Returns an expression for the column of that name."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"col() takes the name of a column, got {name!r}")
    return Expression("col", (), (name,))


def lit(value: Any) -> Expression:
    """Returns an expression for a constant.

    A constant is None, a boolean, a number, a string, bytes, a decimal.Decimal, or a date, time or
    duration of the module datetime; also one of these, but no time, as a scalar of NumPy or Arrow.
    """
    return Expression("lit", (), (constant_of(value),))


def _binary(name: str, left: Any, right: Any) -> Expression:
    if right is None and name in _COMPARISONS:
        # As in SQL the result would be null for each row, so that a filter would drop all rows.
        raise InvalidArgumentError(
            f"{left!r} cannot be compared with None: write .is_null(), or .is_valid() for rows "
            "with a value"
        )
    return Expression(name, (_operand(left), _operand(right)))


def _operand(value: Any) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def _decode(encoded: object, depth: int) -> Expression:
    if depth > _MAX_DEPTH or not isinstance(encoded, Mapping):
        raise InvalidArgumentError(f"malformed or too deeply nested expression: {encoded!r:.200}")
    name = encoded.get("op")
    try:
        arguments = [_decode(argument, depth + 1) for argument in encoded.get("args", ())]
        parameters = [decode_constant(value) for value in encoded.get("with", ())]
        return _rebuild(name, arguments, parameters)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidArgumentError(f"malformed expression {encoded!r:.200}: {error}") from error


def _rebuild(name: Any, arguments: list[Expression], parameters: list[Any]) -> Expression:
    """Builds an expression through the public methods, so that their argument checks apply."""
    if name in ("col", "lit") and not arguments:
        return (col if name == "col" else lit)(*parameters)
    operation = kernels.OPERATIONS[name]
    if len(arguments) != operation.arity:
        raise ValueError(f"{name} takes {operation.arity} arguments, got {len(arguments)}")
    if operation.symbol:
        if parameters:
            raise ValueError(f"{name} takes no parameters, got {parameters}")
        return Expression(name, arguments)
    built = getattr(arguments[0], name)(*parameters)
    assert isinstance(built, Expression)
    return built
