"""Adagrad (Duchi, Hazan and Singer, 2011), in the form Keras uses."""

from __future__ import annotations

from pstrain.optimizers.base import Optimizer, check_rate
from pstrain.vocabulary import OptimizerSpec


class Adagrad(Optimizer):
    """accumulator += gradient²; value -= learning_rate * gradient / sqrt(accumulator + epsilon).

    One accumulator per value, kept next to it by the server. Rows that a step does not touch stay
    as they are.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
    ) -> None:
        start = check_rate("initial_accumulator_value", initial_accumulator_value)
        spec = OptimizerSpec(
            name="adagrad",
            learning_rate=check_rate("learning_rate", learning_rate),
            parameters={"epsilon": check_rate("epsilon", epsilon)},
            slots=1,
            slot_init=start,
        )
        super().__init__(spec)
