"""Stochastic gradient descent: value -= learning_rate * gradient."""

from __future__ import annotations

from pstrain.optimizers.base import Optimizer, check_rate
from pstrain.vocabulary import OptimizerSpec


class SGD(Optimizer):
    """Plain stochastic gradient descent; keeps nothing per value."""

    def __init__(self, learning_rate: float = 0.01) -> None:
        rate = check_rate("learning_rate", learning_rate)
        super().__init__(OptimizerSpec(name="sgd", learning_rate=rate))
