"""Means whose sums are exact: the mean of values, and the mean log loss."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pstrain import foreign_arguments
from pstrain.errors import InvalidArgumentError
from pstrain.features.columns import check_labels, vector
from pstrain.foreign_arguments import instead_of
from pstrain.kernels import losses
from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import Metric, State, pairs, refuse_probabilities

_SHAPE = (2, kernels.LIMBS + 1)


class Mean(Metric):
    """Weighted mean of values. The sum is exact, so no order of additions changes the result.

    State int64 [2, limbs + 1]: sums of weight * value and of weights as fixed-point numbers; the
    last column counts values that are not finite, and any such value makes the result NaN. So
    does a sum of weights of 0: without any value the mean is NaN, where Keras has 0.
    """

    @instead_of("Mean", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "mean") -> None:
        super().__init__(name, _SHAPE)

    def update(self, state: State, values: ArrayLike, weights: ArrayLike | None = None) -> State:
        """Adds values (any shape) with weights of the same shape, or one for all; by default 1."""
        numbers = vector(f"metric {self.name!r}: values", values, np.float64)
        if weights is None:
            _add(state[1], np.array([len(numbers)], dtype=np.float64))
        else:
            by = vector(f"metric {self.name!r}: weights", weights, np.float64)
            by = np.repeat(by, len(numbers)) if np.ndim(weights) == 0 else by
            if by.shape != numbers.shape:
                raise InvalidArgumentError(
                    f"metric {self.name!r} got {len(numbers)} values and {len(by)} weights"
                )
            numbers = numbers * by
            _add(state[1], by)
        _add(state[0], numbers)
        return state

    def update_state(self, values: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Adds values to this object's own state, each ``sample_weight`` times; 1 unless given."""
        self.add_state(self.update(self.initial_state(), values, sample_weight))

    def compute(self, state: State) -> float:
        weight = _exact(state[1])
        if weight == 0 or state[:, -1].any():
            return float("nan")
        return float(_exact(state[0]) / weight)


class LogLoss(Metric):
    """Mean log loss of probabilities, clipped at ``epsilon``; the sum is exact as in ``Mean``.

    Labels may lie between 0 and 1, as smoothed ones do. ``weights`` [n]: each loss counts so many
    times in the sum, which is divided by the number of examples, as the loss that is trained.
    """

    @instead_of("LogLoss", foreign_arguments.LOG_LOSS)
    def __init__(self, name: str = "log_loss", epsilon: float = 1e-7) -> None:
        super().__init__(name, _SHAPE)
        self.epsilon = epsilon

    def update(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> State:
        truth, given = pairs(self.name, labels, probabilities)
        check_labels(f"metric {self.name!r}", truth)
        each = np.empty(len(truth), dtype=np.float64)
        outside = losses.log_losses(truth, given, self.epsilon, each)
        refuse_probabilities(self.name, outside, given)
        _add(state[0], each if weights is None else each * np.asarray(weights))
        _add(state[1], np.array([len(truth)], dtype=np.float64))
        return state

    def compute(self, state: State) -> float:
        count = _exact(state[1])
        return float(_exact(state[0]) / count) if count else float("nan")


def _add(row: State, values: NDArray[np.float64]) -> None:
    row[-1] += kernels.add_exactly(values, row[:-1])


def _exact(row: NDArray[Any]) -> Fraction:
    total = sum(int(limb) << (kernels.LIMB_BITS * k) for k, limb in enumerate(row[:-1]))
    return Fraction(total) * Fraction(2) ** kernels.LOWEST_BIT
