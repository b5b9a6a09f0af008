"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from typing import Any, ClassVar

from dataservice.runtime.arguments import check_true_or_false
from pstrain.optimizers.base import Optimizer, Rate, check_fraction
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments


class SGD(Optimizer):
    """value -= learning_rate * gradient; no state per value. See also :class:`Momentum`."""

    name: ClassVar[str] = "sgd"

    @refuse_arguments("SGD", foreign_arguments.SGD, beyond="momentum")
    def __init__(self, learning_rate: Rate = 0.01, **options: Any) -> None:
        super().__init__(learning_rate, {}, **options)


class Momentum(Optimizer):
    """velocity = momentum * velocity - learning_rate * gradient; value += velocity.

    With ``nesterov``, value += momentum * velocity - learning_rate * gradient instead (Sutskever et
    al., 2013). Rows that a step does not touch keep value and velocity.
    """

    name: ClassVar[str] = "momentum"

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        check_true_or_false(nesterov=nesterov)
        super().__init__(
            learning_rate,
            {"momentum": momentum, "nesterov": nesterov},
            parameters={
                "momentum": check_fraction("momentum", momentum),
                "nesterov": float(nesterov),
            },
            slots=(0.0,),
            **options,
        )
