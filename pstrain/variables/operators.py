"""Python's operators and NumPy's functions on variables: they act on the variable's value.

The value is an array or, under a tape that may train the variable, a tensor. Knows nothing of how
values are read. Invariant: no operator changes a variable.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.number_arrays import column_axes
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients import numpy_calls
from pstrain.gradients.derivatives import WRITES
from pstrain.gradients.recording import wants_gradient
from pstrain.gradients.tensor import VALUES, Tensor, value_of

_Operator: TypeAlias = "Callable[[Any, Any], Any]"


def _computed(compute: _Operator) -> _Operator:
    """Makes an operator whose result has a gradient if a tape may want one."""
    return _of(value_of, compute)


def _of_array(compute: _Operator) -> _Operator:
    """Makes an operator on the plain array, for operations for which tensors have no gradient."""
    return _of(lambda variable: variable.numpy(), compute)


def _of(read: Callable[[Any], Any], compute: _Operator) -> _Operator:
    def operate(self: Any, other: Any) -> Any:
        # The tensor's own operator, which Python tries next, keeps the gradient.
        if isinstance(other, Tensor):
            return NotImplemented
        return compute(read(self), column_axes(other))

    return operate


def _swapped(compute: _Operator) -> _Operator:
    return lambda value, other: compute(other, value)


def _compared(compute: _Operator) -> _Operator:
    def operate(self: Any, other: Any) -> Any:
        operand = other.value if isinstance(other, Tensor) else other
        if not isinstance(operand, VALUES):
            return NotImplemented
        value = self.numpy()
        try:
            return compute(value, np.asarray(operand))
        except ValueError as error:
            raise InvalidArgumentError(
                f"variable {self.name!r} is compared with numbers, or values that fit its shape "
                f"{value.shape}: {error}"
            ) from error

    return operate


def _refused(sign: str, remedy: str) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, _other: Any) -> NoReturn:
        raise InvalidTypeError(
            f"`{sign}` would put an array in the place of variable {self.name!r}: write "
            f"variable.{remedy}"
        )

    return refuse


class ValueOperators:
    """Mixin for classes with ``numpy()``, ``name`` and ``shape``.

    ``==`` compares the value with numbers, arrays, lists and tensors. Any other object, including
    another variable, is equal only if it is the same object, so that searching a list for a
    variable reads no values.
    """

    name: Any
    shape: Any
    numpy: Callable[[], NDArray[Any]]

    __add__, __radd__ = _computed(operator.add), _computed(_swapped(operator.add))
    __sub__, __rsub__ = _computed(operator.sub), _computed(_swapped(operator.sub))
    __mul__, __rmul__ = _computed(operator.mul), _computed(_swapped(operator.mul))
    __truediv__, __rtruediv__ = _computed(operator.truediv), _computed(_swapped(operator.truediv))
    __floordiv__, __rfloordiv__ = (
        _of_array(operator.floordiv),
        _of_array(_swapped(operator.floordiv)),
    )
    __mod__, __rmod__ = _of_array(operator.mod), _of_array(_swapped(operator.mod))
    __pow__, __rpow__ = _computed(operator.pow), _computed(_swapped(operator.pow))
    __matmul__, __rmatmul__ = _computed(operator.matmul), _computed(_swapped(operator.matmul))
    __and__, __rand__ = _of_array(operator.and_), _of_array(_swapped(operator.and_))
    __or__, __ror__ = _of_array(operator.or_), _of_array(_swapped(operator.or_))
    __xor__, __rxor__ = _of_array(operator.xor), _of_array(_swapped(operator.xor))
    __lt__, __le__ = _of_array(operator.lt), _of_array(operator.le)
    __gt__, __ge__ = _of_array(operator.gt), _of_array(operator.ge)
    __iadd__ = _refused("+=", "assign_add(...)")
    __isub__ = _refused("-=", "assign_sub(...)")
    __imul__ = _refused("*=", "assign(variable * ...)")
    __itruediv__ = _refused("/=", "assign(variable / ...)")
    __ifloordiv__ = _refused("//=", "assign(variable // ...)")
    __imod__ = _refused("%=", "assign(variable % ...)")
    __ipow__ = _refused("**=", "assign(variable ** ...)")
    __imatmul__ = _refused("@=", "assign(variable @ ...)")
    __iand__ = _refused("&=", "assign(variable & ...)")
    __ior__ = _refused("|=", "assign(variable | ...)")
    __ixor__ = _refused("^=", "assign(variable ^ ...)")
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return -value_of(self)

    def __pos__(self) -> Any:
        return +value_of(self)

    def __abs__(self) -> Any:
        return abs(value_of(self))

    def __invert__(self) -> Any:
        return ~self.numpy()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        if wants_gradient(self):
            numpy_calls.check_float(sys._getframe(1), "variable")
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return operator.index(self.numpy()[()])

    def __format__(self, spec: str) -> str:
        return format(self.numpy()[()], spec) if spec else str(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(value_of(self))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if _has_variable((*options.get("out", ()), *(inputs[:1] if method == "at" else ()))):
            return NotImplemented
        return getattr(ufunc, method)(*_with_values(inputs), **_with_values(options))

    def __array_function__(
        self, function: Any, _types: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        if _has_variable((options.get("out"), *(args[:1] if function in WRITES else ()))):
            # NumPy would write to a copy of the value, not to the variable.
            return NotImplemented
        if function in _OF_SHAPES:
            # Reading the values could be expensive, and only their shape matters.
            return function(np.broadcast_to(0, self.shape), *args[1:], **options)
        return function(*_with_values(args), **_with_values(options))


_OF_SHAPES = frozenset({np.shape, np.ndim, np.size})


def _has_variable(values: Sequence[Any]) -> bool:
    return any(isinstance(value, ValueOperators) for value in values)


def _with_values(value: Any) -> Any:
    """Replaces variables by their values in arguments, lists, tuples and mappings, at any depth."""
    if isinstance(value, ValueOperators):
        return value_of(value)
    if isinstance(value, Mapping):
        return {name: _with_values(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_values, value))
    return value
