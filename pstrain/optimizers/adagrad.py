"""Adagrad (Duchi, Hazan and Singer, 2011): per value, as in Keras, or per row, as in FBGEMM."""

from __future__ import annotations

from typing import Any, ClassVar

from dataservice.runtime.arguments import non_negative
from pstrain.optimizers.base import Optimizer, Rate


class Adagrad(Optimizer):
    """accumulator += gradient²; value -= learning_rate * gradient / sqrt(accumulator + epsilon).

    There is one accumulator per value, which the server keeps next to the value. Rows that a step
    does not touch do not change.
    """

    name: ClassVar[str] = "adagrad"

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Any,
    ) -> None:
        start = non_negative(initial_accumulator_value, "initial_accumulator_value")
        super().__init__(
            learning_rate,
            {"initial_accumulator_value": start, "epsilon": epsilon},
            parameters={"epsilon": non_negative(epsilon, "epsilon")},
            slots=(start,),
            **options,
        )


class RowWiseAdagrad(Optimizer):
    """accumulator += mean(gradient²); row -= learning_rate * gradient / (sqrt(accumulator) + ε).

    There is one accumulator per row: a table of width 16 needs 6 % more memory instead of twice as
    much. A variable of one dimension has rows of one value.
    """

    name: ClassVar[str] = "rowwise_adagrad"

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        **options: Any,
    ) -> None:
        start = non_negative(initial_accumulator_value, "initial_accumulator_value")
        super().__init__(
            learning_rate,
            {"initial_accumulator_value": start, "epsilon": epsilon},
            parameters={"epsilon": non_negative(epsilon, "epsilon")},
            row_slots=(start,),
            **options,
        )
