"""What an optimizer is here: a rule with numbers, and a counter of the steps it has made.

The arithmetic happens where the rows are. Invariant: an optimizer object never changes after it
is made, so threads and trainers share it freely.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

import numpy as np

from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.tape import Gradients
from pstrain.variable import create_variable
from pstrain.vocabulary import OptimizerSpec, Update


class Optimizer:
    """Base of optimizers. Make it in the same strategy scope as the model it trains."""

    def __init__(self, spec: OptimizerSpec) -> None:
        self.spec = spec
        self.iterations = create_variable(
            initializers.zeros(),
            shape=(),
            dtype="int64",
            name=f"{spec.name}/iterations",
            trainable=False,
        )

    @property
    def learning_rate(self) -> float:
        return self.spec.learning_rate

    @property
    def variables(self) -> list[Any]:
        return [self.iterations]

    def apply_gradients(self, gradients: Gradients | Iterable[tuple[Any, Any]]) -> None:
        """Makes one step; blocks until every server has applied it.

        ``gradients``: what the tape gave, or pairs of (gradient, variable), where the gradient
        is an array of the variable's shape or an ``Update`` from ``Gradients.of``.
        InvalidArgumentError where the variables live elsewhere than this optimizer.
        """
        if not isinstance(gradients, Gradients):
            gradients = _from_pairs(gradients)
        if gradients.parameters is not self.iterations.parameters:
            names = ", ".join(update.variable.name for update in gradients.updates[:3])
            raise InvalidArgumentError(
                f"the optimizer and the variables it is to change ({names}, ...) live in "
                "different places: create both inside the same strategy.scope(), or both outside"
            )
        gradients.parameters.apply(gradients.updates, self.spec, iterations=self.iterations.spec)

    def with_learning_rate(self, learning_rate: float) -> Self:
        """The same rule with another rate, and with the same counter and slots."""
        changed = copy.copy(self)
        rate = check_rate("learning_rate", learning_rate)
        changed.spec = replace(self.spec, learning_rate=rate)
        return changed

    def get_config(self) -> dict[str, Any]:
        """JSON form, from which :func:`pstrain.optimizers.from_config` makes the same rule."""
        return {
            "name": self.spec.name,
            "learning_rate": self.spec.learning_rate,
            "parameters": dict(self.spec.parameters),
            "slot_init": self.spec.slot_init,
        }


def check_rate(name: str, value: float) -> float:
    """``value``, if it can be a learning rate."""
    if not np.isfinite(value) or value < 0:
        raise InvalidArgumentError(f"{name} must be finite and not negative, got {value}")
    return float(value)


def _from_pairs(pairs: Iterable[tuple[Any, Any]]) -> Gradients:
    updates: list[Update] = []
    parameters = None
    for gradient, variable in pairs:
        if gradient is None:
            continue
        if isinstance(gradient, Update):
            updates.append(gradient)
        else:
            value = np.ascontiguousarray(gradient, dtype=np.float32)
            if value.shape != tuple(variable.shape):
                raise InvalidArgumentError(
                    f"gradient of shape {value.shape} for variable {variable.name!r} of shape "
                    f"{tuple(variable.shape)}"
                )
            updates.append(Update(variable.spec, value))
        if parameters is not None and variable.parameters is not parameters:
            raise InvalidArgumentError(
                f"variable {variable.name!r} lives elsewhere than the others: create all inside "
                "one strategy.scope(), or all outside"
            )
        parameters = variable.parameters
    if not updates:
        raise InvalidArgumentError("no gradients given for any variable")
    return Gradients(tuple(updates), parameters)
