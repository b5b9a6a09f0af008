"""FTRL-Proximal (McMahan et al., 2013), in the form that Keras uses."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from dataservice.runtime.arguments import check_number, non_negative
from pstrain.errors import InvalidArgumentError
from pstrain.optimizers.base import Optimizer, Rate

_LEAST_RATE: Final = 1e-30


class Ftrl(Optimizer):
    """Follow the regularised leader: with L1, weights of rare features are exactly 0.

    The rule divides by the learning rate, which must not be 0 at any step of a schedule.
    ``learning_rate_power`` is at most 0; ``beta`` is as in the paper. L2 regularisation is part of
    the rule: give ``l2_regularization_strength``, not ``l2``.
    """

    name: ClassVar[str] = "ftrl"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **options: Any,
    ) -> None:
        check_number("learning_rate_power", learning_rate_power)
        if learning_rate_power > 0:
            raise InvalidArgumentError(
                f"learning_rate_power must not be positive, got {learning_rate_power}"
            )
        if options.get("l2"):
            raise InvalidArgumentError(
                f"Ftrl has an l2 of its own: give l2_regularization_strength instead of "
                f"l2={options['l2']}"
            )
        arguments = {
            "learning_rate_power": learning_rate_power,
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
            "beta": beta,
        }
        for name, value in arguments.items():
            if name != "learning_rate_power":
                non_negative(value, name)
        super().__init__(
            learning_rate,
            arguments,
            parameters={
                "power": learning_rate_power,
                "l1": l1_regularization_strength,
                "l2_own": l2_regularization_strength,
                "l2_shrinkage": l2_shrinkage_regularization_strength,
                "beta": beta,
            },
            slots=(initial_accumulator_value, 0.0),
            **options,
        )

    def _checked_rate(self, what: str, rate: Any) -> float:
        checked = super()._checked_rate(what, rate)
        if checked < _LEAST_RATE:
            raise InvalidArgumentError(
                f"Ftrl divides by its learning rate: {what} must be at least {_LEAST_RATE:g}, got "
                f"{rate}"
            )
        return checked
