"""The rows of a variable that a shard holds, and the checks of operations on them.

Knows no values, slots or locks. Invariant: an operation that passes its check cannot fail because
of its arguments; errors name the variable and the argument that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.kernels import scatter, updates
from pstrain.kernels.keys import NO_KEY, VACATED
from pstrain.paramserver.rules import find_rule
from pstrain.vocabulary import OptimizerSpec, VariableSpec

Array = NDArray[Any]
WHOLE: dict[str, Callable[[Array, Array], Any]] = {
    "set": lambda target, value: np.copyto(target, value, casting="same_kind"),
    "add": lambda target, value: np.add(target, value, out=target, casting="same_kind"),
    "sub": lambda target, value: np.subtract(target, value, out=target, casting="same_kind"),
}
# The kernel's number, for float32 rows, and NumPy's function, for all others.
SCATTER: dict[str, tuple[int, np.ufunc]] = {
    "add": (scatter.ADD, np.add),
    "sub": (scatter.SUB, np.subtract),
    "mul": (scatter.MUL, np.multiply),
    "div": (scatter.DIV, np.divide),
    "min": (scatter.MIN, np.minimum),
    "max": (scatter.MAX, np.maximum),
}


class ShardRows:
    """Rows ``[row_start, row_stop)`` of ``spec``; ids and row numbers are global everywhere."""

    def __init__(self, spec: VariableSpec, index: int) -> None:
        place = spec.shards[index]
        self.spec = spec
        self.index = index
        self.row_start = place.row_start
        self.row_stop = place.row_stop
        self.width = spec.width

    def check_ids(self, ids: NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError naming the first id that is not a row of this shard."""
        bad = updates.first_outside(ids, self.row_start, self.row_stop)
        if bad >= 0:
            raise InvalidArgumentError(
                f"id {ids[bad]} is outside rows [{self.row_start}, {self.row_stop}) of shard "
                f"{self.index} of variable {self.spec.name!r}"
            )

    def check_rule(self, optimizer: OptimizerSpec) -> None:
        """Raises InvalidArgumentError if the rule cannot be used on this variable."""
        find_rule(optimizer)
        self.check_trainable()

    def check_trainable(self) -> None:
        """Raises InvalidArgumentError if no rule can be used on this variable."""
        if self.spec.dtype != "float32":
            raise self._untrainable()

    def _untrainable(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"variable {self.spec.name!r} has dtype {self.spec.dtype}; only float32 variables "
            f"can be trained"
        )

    def check_gradient(self, ids: NDArray[np.int64] | None, gradient: Array) -> None:
        """Raises InvalidArgumentError unless a rule can be used with these ids and gradient."""
        if self.spec.dtype != "float32":
            raise self._untrainable()
        rows = self.row_stop - self.row_start if ids is None else len(ids)
        if gradient.shape != (rows, self.width) or gradient.dtype != np.float32:
            raise InvalidArgumentError(
                f"gradient of variable {self.spec.name!r} is {gradient.dtype} "
                f"{gradient.shape}, expected float32 {(rows, self.width)}"
            )
        if ids is not None:
            self.check_ids(ids)

    def check_assign(self, op: str, start: int, rows: int) -> None:
        """Raises InvalidArgumentError unless :meth:`assign` can be done."""
        if op not in WHOLE:
            raise InvalidArgumentError(f"assign op must be one of {sorted(WHOLE)}, got {op!r}")
        self._check_dtype_of(op)
        self.check_range(start, start + rows)

    def check_scatter(self, op: str, ids: NDArray[np.int64]) -> None:
        """Raises InvalidArgumentError unless :meth:`scatter` can be done."""
        if op != "set" and op not in SCATTER:
            raise InvalidArgumentError(
                f"scatter op must be one of {['set', *sorted(SCATTER)]}, got {op!r}"
            )
        self._check_dtype_of(op)
        self.check_ids(ids)

    def _check_dtype_of(self, op: str) -> None:
        if self.spec.dtype == "bool" and op in ("sub", "div"):
            raise InvalidArgumentError(
                f"variable {self.spec.name!r} holds bool, for which there is no {op!r}"
            )

    def check_counter(self) -> None:
        """Raises InvalidArgumentError unless the shard can count steps in its first row."""
        if np.dtype(self.spec.dtype).kind != "i" or self.row_stop == self.row_start:
            raise InvalidArgumentError(
                f"variable {self.spec.name!r} of dtype {self.spec.dtype} and shape "
                f"{self.spec.shape} cannot count an optimizer's iterations"
            )

    @property
    def holds_keys(self) -> bool:
        """Whether the values are keys, to which :meth:`claim` assigns rows."""
        first = self.spec.initializer.parameters.get("value")
        return self.spec.dtype == "int64" and self.width == 1 and first == NO_KEY

    def check_has_keys(self) -> None:
        """Raises InvalidArgumentError if the values cannot be keys."""
        if self.spec.dtype != "int64" or self.width != 1:
            raise InvalidArgumentError(
                f"variable {self.spec.name!r} holds {self.spec.dtype} {self.spec.shape}, no keys"
            )

    def check_claim(self, keys: Array, starts: Array, stops: Array) -> None:
        """Raises InvalidArgumentError unless :meth:`claim` can be done."""
        self.check_has_keys()
        inside = (self.row_start <= starts) & (starts < stops) & (stops <= self.row_stop)
        wrong = ~inside | (keys <= VACATED)
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidArgumentError(
                f"key {keys[at]} with rows [{starts[at]}, {stops[at]}) cannot be on shard "
                f"{self.index} of variable {self.spec.name!r}, which has rows "
                f"[{self.row_start}, {self.row_stop})"
            )

    def check_range(self, start: int, stop: int) -> None:
        if not self.row_start <= start <= stop <= self.row_stop:
            raise InvalidArgumentError(
                f"rows [{start}, {stop}) are outside rows [{self.row_start}, {self.row_stop}) of "
                f"shard {self.index} of variable {self.spec.name!r}"
            )
