"""What Python's operators do with a variable: what they do with its value, read as an array.

Knows nothing of how values are read. Invariant: no operator changes a variable.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.tensor import VALUES, Tensor

_Operator: TypeAlias = "Callable[[Any, Any], Any]"


def _of_value(compute: _Operator) -> _Operator:
    def operate(self: Any, other: Any) -> Any:
        # A tensor's own operator keeps its gradient.
        return NotImplemented if isinstance(other, Tensor) else compute(self.numpy(), other)

    return operate


def _reflected(compute: _Operator) -> _Operator:
    return _of_value(lambda value, other: compute(other, value))


def _compared(compute: _Operator) -> _Operator:
    def operate(self: Any, other: Any) -> Any:
        given = other.value if isinstance(other, Tensor) else other
        if not isinstance(given, VALUES):
            return NotImplemented
        value = self.numpy()
        try:
            return compute(value, np.asarray(given))
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
    """For classes with ``numpy()`` and ``name``.

    ``==`` compares values with numbers, arrays, lists and tensors; other objects, and variables
    among each other, are equal where they are the same, so that a list can be searched for one
    without reading any.
    """

    name: Any
    numpy: Callable[[], NDArray[Any]]

    __add__, __radd__ = _of_value(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _of_value(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _of_value(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _of_value(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _of_value(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _of_value(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _of_value(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _of_value(operator.matmul), _reflected(operator.matmul)
    __and__, __rand__ = _of_value(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _of_value(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _of_value(operator.xor), _reflected(operator.xor)
    __lt__, __le__ = _of_value(operator.lt), _of_value(operator.le)
    __gt__, __ge__ = _of_value(operator.gt), _of_value(operator.ge)
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
        return -self.numpy()

    def __abs__(self) -> Any:
        return abs(self.numpy())

    def __invert__(self) -> Any:
        return ~self.numpy()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return operator.index(self.numpy()[()])

    def __format__(self, spec: str) -> str:
        return format(self.numpy()[()], spec) if spec else str(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())
