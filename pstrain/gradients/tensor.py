"""Tensors: values computed in a step, with operators and NumPy's functions that keep gradients.

Knows nothing of layers or of where variables are: a variable is any object with ``spec``.
Invariant: no operation changes an array that it is given, and none loses a gradient silently.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.number_arrays import column_axes
from pstrain.errors import UnimplementedError
from pstrain.gradients import derivatives, numpy_calls
from pstrain.gradients.recording import Gradient, leaf, record, recording, wants_gradient

Operand: TypeAlias = "Tensor | ArrayLike"

# Types of operands that `==` compares by value; other objects are never equal to a tensor.
VALUES = (numbers.Number, np.ndarray, np.generic, list, tuple)


class Tensor:
    """A value computed in a step; ``tracked``: a tape has recorded how it depends on a variable.

    Arithmetic with numbers, arrays, tensors and variables returns tensors, and so do indexing,
    matrix products and NumPy's smooth functions: ``tensor[:, 0]``, ``array @ tensor``,
    ``np.exp(tensor)``, ``np.mean(tensor)``. One of two shapes may be broadcast to the other, as
    (k,) and (n, 1) to (n, k). Shapes that only a third shape could combine are an error, most often
    (n, 1) with (n,), a network's logits with labels.
    Comparisons and other functions of NumPy return arrays. If the loss would lose a gradient by
    that, it is an error, also for functions like ``np.mean`` and ``np.exp`` of a list of tensors.
    Piecewise constant functions have no gradient to lose: ``np.round``, ``np.floor`` and
    ``np.sign`` return constants. ``np.asarray(tensor)``, called explicitly, returns the value.
    """

    __slots__ = ("tracked", "value")

    def __init__(self, value: ArrayLike | Tensor) -> None:
        self.tracked = False
        self.value: NDArray[Any]
        if type(value) is np.ndarray:
            self.value = value
            return
        source: Any = value_of(value) if hasattr(value, "spec") else value
        is_tensor = isinstance(source, Tensor)
        self.value = np.asarray(source.value if is_tensor else column_axes(source))
        if is_tensor:
            record(self, (source,), lambda grad: grad)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the value."""
        return self.value.dtype

    def numpy(self) -> NDArray[Any]:
        """Returns the value itself, not a copy; it must not be changed while a tape is active."""
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.tracked and recording():
            numpy_calls.check_keeps_gradient(sys._getframe(1))
        return np.array(self.value, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Makes `array * tensor` a tensor, because NumPy's own result would lose the gradient.

        `array += tensor` adds in place. A NumPy array or number of floats keeps its precision if
        the tensor can be broadcast to its shape, so that sums can be kept in float64.
        """
        if method == "__call__" and not options and derivatives.derivative_of(ufunc):
            return _computed(ufunc, _operands(inputs, self))
        rule = derivatives.FUNCTIONS.get(ufunc)
        if method == "__call__" and rule is not None and _fits(rule, inputs, options):
            return _computed_by(rule, inputs, options)
        changed = (*options.get("out", ()), *(inputs[:1] if method == "at" else ()))
        if any(isinstance(one, Tensor) for one in changed):
            return NotImplemented
        of_values = getattr(ufunc, method)
        package = "numpy." if getattr(np, ufunc.__name__, None) is ufunc else ""
        name = package + ufunc.__name__ + ("" if method == "__call__" else f".{method}")
        is_constant = ufunc in derivatives.CONSTANT
        return _untracked(name, of_values, inputs, options, is_constant, changed)

    def __array_function__(
        self, function: Any, _types: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        rule = derivatives.FUNCTIONS.get(function)
        if rule is not None and _fits(rule, args, options):
            return _computed_by(rule, args, options)
        rule = derivatives.LIST_FUNCTIONS.get(function)
        if rule is not None and args and isinstance(args[0], list | tuple):
            joining = {**options, **dict(zip(["axis"], args[1:], strict=False))}
            if len(args) < 3 and _fits(rule, args[0], joining):
                return _computed_by(rule, args[0], joining)
        changed = (options.get("out"), *(args[:1] if function in derivatives.WRITES else ()))
        if any(isinstance(one, Tensor) for one in changed):
            return NotImplemented
        name = f"{function.__module__}.{function.__qualname__}"
        is_constant = function in derivatives.CONSTANT
        return _untracked(name, function, args, options, is_constant, changed)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a tensor has no {name!r}", name=name, obj=self)
        remedy = f"np.{name}(tensor), or " if hasattr(np, name) else ""
        raise AttributeError(
            f"a tensor has no {name!r} of arrays: write {remedy}tensor.numpy().{name}, which is "
            "without a gradient",
            name=name,
            obj=self,
        )

    def __float__(self) -> float:
        if self.tracked and recording():
            numpy_calls.check_float(sys._getframe(1), "tensor")
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value[()], spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Tensor:
        """Indexes as NumPy does; the gradient goes to the selected values."""
        return _computed_by(derivatives.INDEXING, (self, key), {})

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a scalar tensor")
        return (self[row] for row in range(len(self)))

    def reshape(self, *shape: Any) -> Tensor:
        """Returns ``np.reshape(tensor, shape)``."""
        sizes = shape[0] if len(shape) == 1 else shape
        return _computed_by(derivatives.FUNCTIONS[np.reshape], (self, sizes), {})

    @property
    def T(self) -> Tensor:
        """The transposed tensor, as by ``np.transpose(tensor)``."""
        return _computed_by(derivatives.FUNCTIONS[np.transpose], (self,), {})

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, value={self.value!r})"

    def __add__(self, other: Operand) -> Tensor:
        return _computed(np.add, (self, _operand(other, self)))

    __radd__ = __add__

    def __pos__(self) -> Tensor:
        return _computed(np.positive, (self,))

    def __neg__(self) -> Tensor:
        return _computed(np.negative, (self,))

    def __abs__(self) -> Tensor:
        return _computed(np.absolute, (self,))

    def __sub__(self, other: Operand) -> Tensor:
        return _computed(np.subtract, (self, _operand(other, self)))

    def __rsub__(self, other: Operand) -> Tensor:
        return _computed(np.subtract, (_operand(other, self), self))

    def __mul__(self, other: Operand) -> Tensor:
        return _computed(np.multiply, (self, _operand(other, self)))

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        return _computed(np.divide, (self, _operand(other, self)))

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _computed(np.divide, (_operand(other, self), self))

    def __matmul__(self, other: Operand) -> Any:
        return np.matmul(self, other)  # type: ignore[call-overload]

    def __rmatmul__(self, other: Operand) -> Any:
        return np.matmul(other, self)  # type: ignore[call-overload]

    def __pow__(self, exponent: Operand) -> Tensor:
        if not isinstance(exponent, numbers.Real):
            return _computed(np.power, (self, _operand(exponent, self)))
        # A Python or NumPy number as exponent does not change the tensor's dtype.
        power = int(exponent) if isinstance(exponent, numbers.Integral) else float(exponent)

        def backward(grad: NDArray[Any]) -> Gradient:
            if not power:
                return np.zeros_like(grad)
            return np.asarray(grad * power * self.value ** (power - 1.0), grad.dtype)

        return record(Tensor(self.value**power), (self,), backward)

    def __rpow__(self, base: Operand) -> Tensor:
        return _computed(np.power, (_operand(base, self), self))

    def __eq__(self, other: Any) -> Any:
        value = other.value if isinstance(other, Tensor) else other
        return self.value == np.asarray(value) if isinstance(value, VALUES) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        value = other.value if isinstance(other, Tensor) else other
        return self.value != np.asarray(value) if isinstance(value, VALUES) else NotImplemented

    __hash__ = object.__hash__

    def __lt__(self, other: Operand) -> Any:
        return self.value < np.asarray(_values(other))

    def __le__(self, other: Operand) -> Any:
        return self.value <= np.asarray(_values(other))

    def __gt__(self, other: Operand) -> Any:
        return self.value > np.asarray(_values(other))

    def __ge__(self, other: Operand) -> Any:
        return self.value >= np.asarray(_values(other))


def _computed(ufunc: Any, operands: Sequence[Tensor]) -> Tensor:
    """Computes a ufunc that has derivatives, and records it."""
    derivatives.check_shapes([one.shape for one in operands])
    values = [one.value for one in operands]
    output = Tensor(ufunc(*values))
    derivative: Any = derivatives.derivative_of(ufunc)

    def backward(grad: NDArray[Any]) -> Sequence[Gradient]:
        parts = derivative(grad, output.value, *values)
        return [_gradient(part, one) for part, one in zip(parts, operands, strict=True)]

    return record(output, operands, backward)


def _gradient(part: Any, operand: Tensor) -> Gradient:
    """Returns a gradient in the operand's shape and dtype; None if the operand is not tracked."""
    if not operand.tracked:
        return None
    return np.asarray(derivatives.summed_to(operand.shape, part), operand.dtype)


def _fits(rule: derivatives.Rule, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """True if the rule takes the call's arguments and covers every tracked tensor among them.

    At least one of the rule's own arguments has to be a tensor.
    """
    try:
        _signature(rule.compute).bind(*args, **options)
    except TypeError:
        return False
    places = rule.places(args)
    rest = [
        one for place, one in enumerate(args) if place not in places or not isinstance(one, Tensor)
    ]
    is_lost = recording() and any(one.tracked for one in _tensors((rest, options)))
    return not is_lost and any(isinstance(args[place], Tensor) for place in places)


# Cached, because reading a signature takes longer than most functions. Rules are never dropped.
_signature = functools.lru_cache(maxsize=None)(inspect.signature)


def _computed_by(rule: derivatives.Rule, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    like = next(one for one in args if isinstance(one, Tensor))
    arguments, places = list(map(column_axes, args)), rule.places(args)
    for place in places:
        if hasattr(args[place], "spec"):
            arguments[place] = _of_variable(args[place], like.dtype)
    value, gradients = rule.compute(*_values(arguments), **_values(options))
    operands = (arguments[place] for place in places)
    inputs = [one if isinstance(one, Tensor) else Tensor(one) for one in operands]

    def backward(grad: NDArray[Any]) -> Sequence[Gradient]:
        return [_gradient(part, one) for part, one in zip(gradients(grad), inputs, strict=True)]

    return record(Tensor(value), inputs, backward)


def _untracked(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    options: Mapping[str, Any],
    is_constant: bool,
    changed: Sequence[Any],
) -> Any:
    """Calls a function with values of tensors; UnimplementedError if that would lose a gradient."""
    is_lost = not is_constant and recording()
    is_lost = is_lost and any(one.tracked for one in _tensors((args, options)))
    if is_lost and any(map(_has_floats, changed)):
        raise UnimplementedError(
            f"{name} would put a tensor that a loss may depend on into an array, which keeps no "
            "gradient: write `array + tensor` for a tensor, tensor.numpy() for its value"
        )
    result = function(*_values(args), **_values(options))
    if is_lost and _has_floats(result):
        raise UnimplementedError(
            f"{name} has no gradient here, and a loss may depend on what it is given: for its "
            f"value give tensor.numpy(); functions with a gradient are {derivatives.names()}"
        )
    return result


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """Yields the tensors in arguments, nested to any depth."""
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, Mapping):
        yield from _tensors(list(arguments.values()))
    elif isinstance(arguments, Sequence) and not isinstance(arguments, str | bytes):
        for one in arguments:
            yield from _tensors(one)


def _values(arguments: Any) -> Any:
    """Returns arguments in which tensors are replaced by their values."""
    if isinstance(arguments, Tensor):
        return arguments.value
    if isinstance(arguments, Mapping):
        return {name: _values(one) for name, one in arguments.items()}
    if isinstance(arguments, tuple):
        return tuple(map(_values, arguments))
    if isinstance(arguments, Sequence) and not isinstance(arguments, str | bytes):
        return list(map(_values, arguments))
    return arguments


def _has_floats(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return any(map(_has_floats, result))
    return isinstance(result, float) or getattr(result, "dtype", np.dtype(bool)).kind in "fc"


def _operands(inputs: Sequence[Any], tensor: Tensor) -> list[Tensor]:
    """Returns the inputs of a ufunc as tensors; ``tensor`` is the first tensor among them."""
    for other in inputs:
        is_numpys = isinstance(other, np.ndarray | np.generic) and other.dtype.kind == "f"
        if is_numpys and derivatives.reaches(tensor.shape, other.shape):
            like = cast(tensor, np.promote_types(other.dtype, tensor.dtype))
            break
    else:
        like = tensor
    return [like if one is tensor else _operand(one, like) for one in inputs]


def cast(tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Returns the tensor in ``dtype``; its gradient is converted back to the original dtype."""
    if tensor.dtype == dtype:
        return tensor
    output = Tensor(tensor.value.astype(dtype))
    return record(output, (tensor,), lambda grad: np.asarray(grad, tensor.dtype))


def _operand(other: Operand, like: Tensor) -> Tensor:
    """Returns ``other`` as a tensor: unchanged if it is one, else in the dtype of ``like``.

    A dtype of ``like`` that is not of floats is not applied.
    """
    if isinstance(other, Tensor):
        return other
    if hasattr(other, "spec"):
        return _of_variable(other, like.dtype)
    other = column_axes(other)
    return Tensor(np.asarray(other, like.dtype if like.dtype.kind == "f" else None))


def _of_variable(variable: Any, dtype: np.dtype[Any]) -> Tensor:
    """Reads a variable, in ``dtype`` if that is a float type; a leaf if a tape may train it."""
    if hasattr(variable.parameters, "parts"):
        return joined([_of_variable(part, dtype) for part in variable.parameters.parts])
    is_trained = variable.trainable and variable.dtype == np.float32
    if is_trained and recording() and tuple(variable.shape) != tuple(variable.spec.shape):
        # A tape treats a part of a sharded variable as rows of the variable.
        return cast(variable[:], dtype if dtype.kind == "f" else variable.dtype)
    value = Tensor(np.asarray(variable.numpy(), dtype if dtype.kind == "f" else None))
    if is_trained:
        leaf(value, variable)
    return value


def as_tensor(value: Any) -> Tensor:
    """Returns a tensor unchanged, a variable as what a tape may train, others as constants."""
    return value if isinstance(value, Tensor) else Tensor(value)


def value_of(variable: Any) -> Any:
    """Returns the variable's value: a leaf tensor if a tape may train it, else an array."""
    if wants_gradient(variable):
        return _of_variable(variable, variable.dtype)
    return variable.numpy()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors along the first axis."""
    ends = np.cumsum([len(part) for part in parts])
    whole = Tensor(np.concatenate([part.value for part in parts]))
    return record(whole, parts, lambda grad: np.split(grad, ends[:-1]))
