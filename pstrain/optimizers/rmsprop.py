"""RMSprop (Tieleman and Hinton, 2012), in the form that Keras uses."""

from __future__ import annotations

from typing import Any, ClassVar

from dataservice.runtime.arguments import non_negative
from pstrain.optimizers.base import Optimizer, Rate, check_fraction


class RMSprop(Optimizer):
    """mean = rho * mean + (1 - rho) * gradient²; value -= rate * gradient / sqrt(mean + epsilon).

    With ``momentum``, steps accumulate in a second number per value. Rows that a step does not
    touch do not change.
    """

    name: ClassVar[str] = "rmsprop"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        **options: Any,
    ) -> None:
        parameters = {
            "rho": check_fraction("rho", rho),
            "momentum": check_fraction("momentum", momentum),
            "epsilon": non_negative(epsilon, "epsilon"),
        }
        super().__init__(
            learning_rate,
            parameters,
            rule="rmsprop_momentum" if momentum else "rmsprop",
            parameters=parameters,
            slots=(0.0, 0.0) if momentum else (0.0,),
            **options,
        )
