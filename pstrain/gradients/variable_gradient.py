"""The gradient of one variable: an update that also supports arithmetic.

Knows nothing of tapes. Invariant: arithmetic returns new arrays, so the step's own gradient does
not change.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidTypeError
from pstrain.vocabulary import Update

Array = NDArray[Any]


def _operator(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: compute(np.asarray(self), *map(_value, others))


def _swapped(compute: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return _operator(lambda mine, other: compute(other, mine))


def _value(other: Any) -> Any:
    return np.asarray(other) if isinstance(other, VariableGradient) else other


class VariableGradient(Update):
    """The gradient of a whole variable or of looked-up rows, as given to ``apply_gradients``.

    The gradient of a whole variable acts as an array for NumPy and operators, which return arrays.
    The gradient of looked-up rows, ``values`` [n, ...] of rows ``indices``, can be multiplied and
    divided by numbers, which returns a gradient of the same rows.
    """

    # Makes operators of NumPy's arrays and numbers defer to those of this class.
    __array_priority__ = 1000

    def __repr__(self) -> str:
        what = "" if self.lookup is None else f" in {len(self.indices)} rows"
        return f"<gradient of {self.variable.name!r}{what}: {self.values!r}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the variable."""
        return tuple(self.variable.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.gradient.dtype

    @property
    def indices(self) -> NDArray[np.int64]:
        """The looked-up rows, each once and grouped by shard; all rows of a whole variable."""
        return np.arange(self.variable.rows) if self.lookup is None else self.lookup.unique

    @property
    def values(self) -> Array:
        """The gradients of rows ``indices``, or of the whole variable."""
        count = () if self.lookup is None else (len(self.indices), *self.variable.shape[1:])
        return self.gradient.reshape(count or self.shape)

    def numpy(self) -> Array:
        """Returns the gradient of a whole variable; InvalidTypeError for looked-up rows."""
        return np.asarray(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.lookup is not None:
            raise InvalidTypeError(
                f"the gradient of {self.variable.name!r} is that of {len(self.indices)} of its "
                "rows, not an array of the whole: take its values and indices, multiply it by a "
                "number, or give IndexedSlices(values, gradient.indices), with values computed of "
                "gradient.values"
            )
        return np.array(self.gradient.reshape(self.shape), dtype=dtype, copy=copy)

    def __mul__(self, factor: Any) -> Any:  # type: ignore[override]
        return self._scaled(operator.mul, factor)

    __rmul__ = __mul__  # type: ignore[assignment]

    def __truediv__(self, divisor: Any) -> Any:
        return self._scaled(operator.truediv, divisor)

    def _scaled(self, compute: Callable[[Any, Any], Any], number: Any) -> Any:
        is_number = isinstance(number, numbers.Real) or np.shape(number) == ()
        if self.lookup is None or not is_number:
            return compute(np.asarray(self), _value(number))
        scaled = compute(self.gradient, np.float32(number))
        return VariableGradient(self.variable, scaled, self.lookup)

    __add__ = __radd__ = _operator(operator.add)
    __sub__, __rsub__ = _operator(operator.sub), _swapped(operator.sub)
    __rtruediv__ = _swapped(operator.truediv)
    __pow__, __abs__ = _operator(operator.pow), _operator(operator.abs)

    def __neg__(self) -> Any:
        return self * -1

    def __float__(self) -> float:
        return float(np.asarray(self))
