"""Adam (Kingma and Ba, 2015), lazy: only rows that a step touches change, moments included."""

from __future__ import annotations

from typing import Any, ClassVar

from pstrain.optimizers.base import Optimizer, Rate, check_fraction, check_rate


class Adam(Optimizer):
    """Steps by the first moment of the gradient over the root of the second.

    The bias of the moments is corrected by the number of updates of the row itself, so that a
    rare id's first step is as long as that of a frequent one.
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
            "epsilon": check_rate("epsilon", epsilon),
        }
        super().__init__(
            learning_rate,
            parameters,
            parameters=parameters,
            slots=(0.0, 0.0),
            row_slots=(0.0,),
            **options,
        )
