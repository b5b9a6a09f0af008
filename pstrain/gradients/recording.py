"""What is noted of a step's operations while a tape is active, in the thread that entered it.

Knows neither what a tensor can do nor how gradients are added up: a leaf is whatever has ``spec``,
``parameters`` and ``trainable``. Invariant: without an active tape nothing is kept.
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
    """A value that depends on others."""

    value: NDArray[Any]
    tracked: bool


_R = TypeVar("_R", bound=Recorded)


class Record:
    """The operations and leaves that one tape has seen."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.leaves: list[Leaf] = []


class Operation(NamedTuple):
    """How outputs were made of inputs."""

    outputs: tuple[Recorded, ...]
    inputs: tuple[Recorded, ...]
    backward: Backward


class Leaf(NamedTuple):
    """A tensor that is what was read of a variable."""

    tensor: Recorded
    variable: Any
    lookup: Lookup | None


class _Active(threading.local):
    def __init__(self) -> None:
        self.tapes: list[Record] = []


_active = _Active()
_is_tracked = operator.attrgetter("tracked")


def records() -> list[Record]:
    """Those of the tapes that are active in this thread."""
    return _active.tapes


def recording() -> bool:
    """Whether a tape is active in this thread."""
    return bool(records())


def wants_gradient(variable: Any) -> bool:
    """Whether a tape of this thread may train what is read of ``variable``.

    InvalidArgumentError where it was to be trained and cannot be, for its dtype: it would be a
    constant, unsaid.
    """
    if not (recording() and variable.trainable):
        return False
    if variable.dtype == np.float32:
        return True
    if variable.dtype.kind == "f":
        raise InvalidArgumentError(
            f"variable {variable.name!r} holds {variable.dtype}, and a tape trains variables of "
            "float32: make it with dtype='float32', as an array of NumPy's is float64 by itself, "
            "or with trainable=False; numpy() reads a constant"
        )
    return False


def leaf(tensor: _R, variable: Any, lookup: Lookup | None = None) -> _R:
    """Says that ``tensor`` is ``variable``'s value, or (``lookup``) the rows looked up from it."""
    tapes = _active.tapes
    if tapes and variable.trainable:
        tensor.tracked = True
        for tape in tapes:
            tape.leaves.append(Leaf(tensor, variable, lookup))
    return tensor


def record(output: _R, inputs: Sequence[Recorded], backward: Backward) -> _R:
    """Says how ``output`` was made; without an active tape nothing is kept.

    ``backward(output_gradient)`` returns one gradient per input (or the gradient itself where
    there is one input), None for "no dependence"; it must not change its argument.
    """
    record_all((output,), inputs, backward)
    return output


def record_all(outputs: Sequence[Recorded], inputs: Sequence[Recorded], backward: Backward) -> None:
    """Like :func:`record` with several outputs; ``backward`` takes one gradient, or None, each."""
    tapes = _active.tapes
    if not tapes or not any(map(_is_tracked, inputs)):
        return
    operation = Operation(tuple(outputs), tuple(inputs), backward)
    for output in outputs:
        output.tracked = True
    for tape in tapes:
        tape.operations.append(operation)
