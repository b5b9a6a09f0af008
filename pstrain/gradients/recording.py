"""Records a step's operations while a tape is active, in the thread that entered the tape.

Knows neither the operations of tensors nor how gradients are summed; a variable is any object with
``spec``, ``parameters`` and ``trainable``. Invariant: without an active tape nothing is recorded.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.vocabulary import Lookup

Gradient: TypeAlias = "NDArray[Any] | None"
Backward: TypeAlias = "Callable[..., Sequence[Gradient] | Gradient]"


class Recorded(Protocol):
    """A value that may depend on other values."""

    value: NDArray[Any]
    tracked: bool


_R = TypeVar("_R", bound=Recorded)


class Record:
    """The operations and leaves that one tape has recorded."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.leaves: list[Leaf] = []


class Operation(NamedTuple):
    """An operation that computed outputs from inputs, with its backward function."""

    outputs: tuple[Recorded, ...]
    inputs: tuple[Recorded, ...]
    backward: Backward


class Leaf(NamedTuple):
    """A tensor that was read from a variable: its value or, with ``lookup``, rows of it."""

    tensor: Recorded
    variable: Any
    lookup: Lookup | None


class _Active(threading.local):
    def __init__(self) -> None:
        self.tapes: list[Record] = []


_active = _Active()
_is_tracked = operator.attrgetter("tracked")


def records() -> list[Record]:
    """Returns the records of the tapes that are active in this thread."""
    return _active.tapes


def recording() -> bool:
    """True if a tape is active in this thread."""
    return bool(records())


def wants_gradient(variable: Any) -> bool:
    """True if a tape of this thread can train what is read from ``variable``.

    InvalidArgumentError for a trainable variable of floats other than float32, which otherwise
    would silently be a constant.
    """
    if not (recording() and variable.trainable):
        return False
    check_precision(variable, "or with trainable=False; numpy() reads a constant")
    return bool(variable.dtype == np.float32)


def check_precision(variable: Any, otherwise: str) -> None:
    """Raises InvalidArgumentError, which ends with ``otherwise``, for floats but float32."""
    if variable.dtype.kind == "f" and variable.dtype != np.float32:
        raise InvalidArgumentError(
            f"variable {variable.name!r} holds {variable.dtype}, and a tape trains variables of "
            "float32: make it with dtype='float32', as an array of NumPy's is float64 by itself, "
            + otherwise
        )


def leaf(tensor: _R, variable: Any, lookup: Lookup | None = None) -> _R:
    """Records that ``tensor`` is ``variable``'s value or, with ``lookup``, its looked-up rows."""
    tapes = _active.tapes
    if tapes and variable.trainable:
        tensor.tracked = True
        for tape in tapes:
            tape.leaves.append(Leaf(tensor, variable, lookup))
    return tensor


def record(output: _R, inputs: Sequence[Recorded], backward: Backward) -> _R:
    """Records how ``output`` was computed, if a tape is active and an input is tracked.

    ``backward(output_gradient)`` returns one gradient per input, or the gradient itself if there is
    one input; None means that the output does not depend on the input. It must not change its
    argument.
    """
    record_all((output,), inputs, backward)
    return output


def record_all(outputs: Sequence[Recorded], inputs: Sequence[Recorded], backward: Backward) -> None:
    """Records like :func:`record`; ``backward`` takes a gradient, or None, for each output."""
    tapes = _active.tapes
    if not tapes or not any(map(_is_tracked, inputs)):
        return
    operation = Operation(tuple(outputs), tuple(inputs), backward)
    for output in outputs:
        output.tracked = True
    for tape in tapes:
        tape.operations.append(operation)
