"""Records what a step computes and turns it into gradients of the variables it read.

Knows nothing of networks, of layers or of where variables live: a leaf is whatever has ``spec``,
``parameters`` and ``trainable``. Invariant: a tape belongs to the thread that entered it, and an
operation never changes an array it was handed, so one gradient may reach two consumers.
"""

from __future__ import annotations

import numbers
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.vocabulary import Lookup, Update, VariableSpec

Gradient: TypeAlias = "NDArray[Any] | None"
Operand: TypeAlias = "Tensor | ArrayLike"
Backward: TypeAlias = "Callable[..., Sequence[Gradient] | Gradient]"

# What `==` compares values with; anything else is another object.
VALUES = (numbers.Number, np.ndarray, np.generic, list, tuple)

# NumPy's functions that are operators of tensors.
_OPERATORS: dict[Any, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.negative: operator.neg,
}


class Tensor:
    """A value computed in a step. ``tracked``: a tape knows how it depends on a variable.

    Sums, products, quotients and powers with numbers, arrays, tensors and variables of its shape,
    or scalar variables, are tensors too; comparisons, and what other functions of NumPy make of a
    tensor, are arrays.
    """

    __slots__ = ("tracked", "value")

    def __init__(self, value: ArrayLike) -> None:
        self.value: NDArray[Any] = np.asarray(value)
        self.tracked = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    def numpy(self) -> NDArray[Any]:
        """The value itself, not a copy; it must not be changed while a tape is active."""
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """`array * tensor` is a tensor, whose gradient NumPy's own answer would lose.

        `array += tensor` adds in place, and what has no gradient here is computed of the values.
        An array or number of the tensor's shape keeps its precision, so that sums can be kept in
        float64.
        """
        if method == "__call__" and not options and ufunc in _OPERATORS:
            return _OPERATORS[ufunc](*_operands(inputs, self))
        changed = (*options.get("out", ()), *(inputs[:1] if method == "at" else ()))
        if any(isinstance(one, Tensor) for one in changed):
            return NotImplemented
        values = (one.value if isinstance(one, Tensor) else one for one in inputs)
        return getattr(ufunc, method)(*values, **options)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value[()], spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, value={self.value!r})"

    def __add__(self, other: Operand) -> Tensor:
        right = _operand(other, self)
        output = Tensor(self.value + right.value)
        return record(output, (self, right), lambda grad: (grad, grad))

    __radd__ = __add__

    def __neg__(self) -> Tensor:
        return record(Tensor(-self.value), (self,), lambda grad: -grad)

    def __sub__(self, other: Operand) -> Tensor:
        return self + (-_operand(other, self))

    def __rsub__(self, other: Operand) -> Tensor:
        return (-self) + other

    def __mul__(self, other: Operand) -> Tensor:
        left, right = self, _operand(other, self)
        output = Tensor(left.value * right.value)
        return record(output, (left, right), lambda g: (g * right.value, g * left.value))

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        top, bottom = self, _operand(other, self)
        output = Tensor(top.value / bottom.value)

        def backward(grad: NDArray[Any]) -> Sequence[Gradient]:
            to_top = grad / bottom.value
            return to_top, -to_top * output.value

        return record(output, (top, bottom), backward)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _operand(other, self) / self

    def __pow__(self, exponent: float) -> Tensor:
        if not isinstance(exponent, numbers.Real):
            raise InvalidTypeError(f"a Tensor can be raised to a number, got {exponent!r}")
        # Numbers of Python take the tensor's dtype, whatever NumPy's would make of it.
        power = int(exponent) if isinstance(exponent, numbers.Integral) else float(exponent)

        def backward(grad: NDArray[Any]) -> Gradient:
            if not power:
                return np.zeros_like(grad)
            return np.asarray(grad * power * self.value ** (power - 1.0), grad.dtype)

        return record(Tensor(self.value**power), (self,), backward)

    def __eq__(self, other: Any) -> Any:
        given = other.value if isinstance(other, Tensor) else other
        return self.value == np.asarray(given) if isinstance(given, VALUES) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        given = other.value if isinstance(other, Tensor) else other
        return self.value != np.asarray(given) if isinstance(given, VALUES) else NotImplemented

    __hash__ = object.__hash__

    def __lt__(self, other: Operand) -> Any:
        return self.value < np.asarray(other)

    def __le__(self, other: Operand) -> Any:
        return self.value <= np.asarray(other)

    def __gt__(self, other: Operand) -> Any:
        return self.value > np.asarray(other)

    def __ge__(self, other: Operand) -> Any:
        return self.value >= np.asarray(other)


def _operands(inputs: Sequence[Any], tensor: Tensor) -> list[Tensor]:
    """What NumPy was given, of which ``tensor`` is the first tensor, as tensors."""
    for other in inputs:
        is_numpys = isinstance(other, np.ndarray | np.generic)
        if is_numpys and other.shape == tensor.shape and other.dtype.kind == "f":
            like = _cast(tensor, np.promote_types(other.dtype, tensor.dtype))
            break
    else:
        like = tensor
    return [like if one is tensor else _operand(one, like) for one in inputs]


def _cast(tensor: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if tensor.dtype == dtype:
        return tensor
    output = Tensor(tensor.value.astype(dtype))
    return record(output, (tensor,), lambda grad: np.asarray(grad, tensor.dtype))


def _operand(other: Operand, like: Tensor) -> Tensor:
    """``other`` with the shape of ``like``, so that gradients need no reduction, and its dtype."""
    if hasattr(other, "spec"):
        other = _of_variable(other, like)
    shape = other.shape if isinstance(other, Tensor) else np.shape(other) or like.shape
    if shape != like.shape:
        raise InvalidArgumentError(
            f"tensors of shapes {like.shape} and {shape} cannot be combined: "
            "both need the same shape"
        )
    if isinstance(other, Tensor):
        return other
    dtype = like.dtype if like.dtype.kind == "f" else None
    return Tensor(np.full(shape, other, dtype))


def _of_variable(variable: Any, like: Tensor) -> Tensor:
    """What is read of a variable; a scalar in each place of ``like``. A leaf if it is trained."""
    value = Tensor(np.asarray(variable.numpy(), like.dtype if like.dtype.kind == "f" else None))
    if variable.trainable and variable.dtype == np.float32:
        leaf(value, variable)
    if value.shape or not like.shape:
        return value
    spread = Tensor(np.full(like.shape, value.value))
    return record(spread, (value,), lambda grad: np.asarray(grad.sum()))


class _Operation(NamedTuple):
    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    backward: Backward


class _Leaf(NamedTuple):
    tensor: Tensor
    variable: Any
    lookup: Lookup | None


_active = threading.local()


def _tapes() -> list[GradientTape]:
    tapes: list[GradientTape] | None = getattr(_active, "tapes", None)
    if tapes is None:
        tapes = _active.tapes = []
    return tapes


def recording() -> bool:
    """Whether a tape is active in this thread."""
    return bool(_tapes())


def leaf(tensor: Tensor, variable: Any, lookup: Lookup | None = None) -> Tensor:
    """Says that ``tensor`` is ``variable``'s value, or (``lookup``) the rows looked up from it."""
    tapes = _tapes()
    if tapes and variable.trainable:
        tensor.tracked = True
        for tape in tapes:
            tape.leaves.append(_Leaf(tensor, variable, lookup))
    return tensor


def record(output: Tensor, inputs: Sequence[Tensor], backward: Backward) -> Tensor:
    """Says how ``output`` was made; without an active tape nothing is kept.

    ``backward(output_gradient)`` returns one gradient per input (or the gradient itself where
    there is one input), None for "no dependence"; it must not change its argument.
    """
    record_all((output,), inputs, backward)
    return output


def record_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Backward) -> None:
    """Like :func:`record` with several outputs; ``backward`` takes one gradient, or None, each."""
    tapes = _tapes()
    if not tapes or not any(tensor.tracked for tensor in inputs):
        return
    operation = _Operation(tuple(outputs), tuple(inputs), backward)
    for output in outputs:
        output.tracked = True
    for tape in tapes:
        tape.operations.append(operation)


@dataclass(frozen=True, slots=True, repr=False)
class Gradients:
    """What a step wants to change: at most one update per variable, all through ``parameters``."""

    updates: tuple[Update, ...]
    parameters: Any

    def __iter__(self) -> Iterator[Update]:
        return iter(self.updates)

    def __len__(self) -> int:
        return len(self.updates)

    def __repr__(self) -> str:
        return f"<Gradients of {', '.join(repr(update.variable.name) for update in self)}>"

    def of(self, variable: Any) -> Update:
        """The update of one variable. KeyError where the loss does not depend on it."""
        for update in self.updates:
            if update.variable.id == variable.spec.id:
                return update
        raise KeyError(variable.name)


class GradientTape:
    """Records the operations of its ``with`` block in the thread that entered it.

    Variables are read through layers and models, which name them as leaves, or beside a tensor:
    ``tensor * variable``. What is computed of variables alone is an array, and has no gradient. The
    tape keeps the arrays of the step alive until it is dropped.
    """

    def __init__(self) -> None:
        self.operations: list[_Operation] = []
        self.leaves: list[_Leaf] = []

    def __repr__(self) -> str:
        return f"<GradientTape of {len(self.operations)} operations, {len(self.leaves)} reads>"

    def __enter__(self) -> GradientTape:
        _tapes().append(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        _tapes().remove(self)

    def gradients(self, loss: Tensor) -> Gradients:
        """Gradients of a scalar ``loss`` with respect to every trainable variable it depends on.

        A variable that was read several times gets the sum. InvalidArgumentError where ``loss``
        is not a scalar computed inside this tape.
        """
        if not isinstance(loss, Tensor) or loss.value.size != 1:
            found = f"shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InvalidArgumentError(
                f"gradients need a scalar Tensor as loss, got {found}: take the mean first"
            )
        found_by_tensor = self._backpropagate(loss)
        per_variable: dict[tuple[int, int], list[tuple[_Leaf, NDArray[Any]]]] = {}
        for entry in self.leaves:
            gradient = found_by_tensor.get(id(entry.tensor))
            if gradient is not None:
                key = (id(entry.variable.parameters), entry.variable.spec.id)
                per_variable.setdefault(key, []).append((entry, gradient))
        if not per_variable:
            raise InvalidArgumentError(
                "the loss depends on no trainable variable that this tape has seen: compute it "
                "inside the `with GradientTape()` block, from a model or its layers"
            )
        if len({key[0] for key in per_variable}) > 1:
            names = sorted({uses[0][0].variable.name for uses in per_variable.values()})
            raise InvalidArgumentError(
                f"the loss mixes variables of different scopes ({', '.join(names)}): create them "
                "all inside one strategy.scope(), or all outside"
            )
        parameters = self.leaves[0].variable.parameters
        return Gradients(tuple(_summed(uses) for uses in per_variable.values()), parameters)

    def gradient(self, target: Tensor, sources: Any) -> Any:
        """Those of :meth:`gradients` for the given variables, None where there is none.

        For a variable one, for a list or tuple a list, to be given to ``apply_gradients`` as
        pairs: ``zip(tape.gradient(loss, variables), variables)``.
        """
        found = self.gradients(target)
        several = isinstance(sources, list | tuple)
        wanted = [
            next((update for update in found if update.variable.id == source.spec.id), None)
            if source.parameters is found.parameters
            else None
            for source in (sources if several else [sources])
        ]
        return wanted if several else wanted[0]

    def _backpropagate(self, loss: Tensor) -> dict[int, NDArray[Any]]:
        found: dict[int, NDArray[Any]] = {id(loss): np.ones_like(loss.value)}
        for outputs, inputs, backward in reversed(self.operations):
            given = [found.pop(id(output), None) for output in outputs]
            if all(gradient is None for gradient in given):
                continue
            answer = backward(*given)
            results = answer if isinstance(answer, tuple | list) else (answer,)
            for tensor, gradient in zip(inputs, results, strict=True):
                if gradient is not None and tensor.tracked:
                    known = found.get(id(tensor))
                    found[id(tensor)] = gradient if known is None else known + gradient
        return found


def _summed(uses: list[tuple[_Leaf, NDArray[Any]]]) -> Update:
    first, gradient = uses[0]
    spec: VariableSpec = first.variable.spec
    if len(uses) == 1:
        return Update(spec, gradient, first.lookup)
    if all(entry.lookup is None for entry, _ in uses):
        return Update(spec, np.sum([gradient for _, gradient in uses], axis=0), None)
    if any(entry.lookup is None for entry, _ in uses):
        raise InvalidArgumentError(
            f"variable {spec.name!r} was read both as a whole and by rows in one step; "
            "read it in one way, or in two steps"
        )
    return _merge_lookups(spec, uses)


def _merge_lookups(spec: VariableSpec, uses: list[tuple[_Leaf, NDArray[Any]]]) -> Update:
    """Shards hold consecutive rows, so ids in ascending order are grouped by shard."""
    lookups = [entry.lookup for entry, _ in uses if entry.lookup is not None]
    unique, places = np.unique(
        np.concatenate([lookup.unique for lookup in lookups]), return_inverse=True
    )
    total = np.zeros((len(unique), spec.width), dtype=np.float32)
    np.add.at(total, places, np.concatenate([gradient for _, gradient in uses]))
    rows = np.empty_like(total)
    rows[places] = np.concatenate([lookup.rows for lookup in lookups])
    bounds = [0, *(shard.row_stop for shard in spec.shards)]
    offsets = np.searchsorted(unique, bounds).astype(np.int64)
    starts = np.cumsum([0, *(len(lookup.unique) for lookup in lookups)])
    inverse = np.concatenate(
        [
            places[start : start + len(lookup.unique)][lookup.inverse]
            for start, lookup in zip(starts, lookups, strict=False)
        ]
    ).astype(np.int32)
    return Update(spec, total, Lookup(unique, offsets, inverse, rows))
