"""Lazy Adam (Kingma and Ba, 2015): a step changes values and moments only of rows it touches."""

from __future__ import annotations

from typing import Any, ClassVar

from dataservice.runtime.arguments import non_negative
from pstrain.optimizers.base import Optimizer, Rate, check_fraction


class Adam(Optimizer):
    """value -= learning_rate * first moment of the gradient / root of its second moment.

    The moments are corrected for bias by the number of updates of the row itself, so that the first
    step of a rare id is as long as that of a frequent one.
    """

    name: ClassVar[str] = "adam"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Any,
    ) -> None:
        parameters = {
            "beta_1": check_fraction("beta_1", beta_1),
            "beta_2": check_fraction("beta_2", beta_2),
            "epsilon": non_negative(epsilon, "epsilon"),
        }
        super().__init__(
            learning_rate,
            parameters,
            parameters=parameters,
            slots=(0.0, 0.0),
            row_slots=(0.0,),
            **options,
        )
