"""Means with exact sums: of values, of log losses, of errors of predictions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import positive
from pstrain.errors import InvalidArgumentError
from pstrain.features.columns import check_labels, vector
from pstrain.kernels import losses
from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import Metric, State, pairs, refuse_probabilities, weights_of
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_SHAPE = (2, kernels.LIMBS + 1)


class Mean(Metric):
    """The weighted mean of values; its sum is exact, so the order of additions does not matter.

    State, int64 [2, limbs + 1]: the sums of weight * value and of weights as fixed-point numbers;
    the last column counts values that are not finite. The result is NaN if there is any such value,
    or if the weights add up to 0: without values it is NaN, where Keras returns 0.
    """

    @refuse_arguments("Mean", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "mean") -> None:
        super().__init__(name, _SHAPE)

    def update(self, state: State, values: ArrayLike, weights: ArrayLike | None = None) -> State:
        """Adds values of any shape; ``weights``: of the same shape, or one for all; default 1."""
        numbers = vector(f"metric {self.name!r}: values", values, np.float64)
        by = None
        if weights is not None:
            by = vector(f"metric {self.name!r}: weights", weights, np.float64)
            by = np.repeat(by, len(numbers)) if np.ndim(weights) == 0 else by
            if by.shape != numbers.shape:
                raise InvalidArgumentError(
                    f"metric {self.name!r} got {len(numbers)} values and {len(by)} weights"
                )
        add_weighted(state, numbers, by)
        return state

    def update_state(  # type: ignore[override]
        self, values: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> None:
        """Adds values to this object's own state, each ``sample_weight`` times (default 1)."""
        self.add_state(self.update(self.initial_state(), values, sample_weight))

    def compute(self, state: State) -> float:
        return mean_of(state)


class LogLoss(Metric):
    """The mean log loss of probabilities, clipped at ``epsilon``; its sum is exact as in ``Mean``.

    Labels may lie between 0 and 1, such as smoothed labels. With weights, the weighted mean.
    """

    more_is_better = False
    of_probabilities = True

    @refuse_arguments("LogLoss", foreign_arguments.LOG_LOSS)
    def __init__(self, name: str = "log_loss", epsilon: float = 1e-7) -> None:
        super().__init__(name, _SHAPE)
        self.epsilon = positive(epsilon, "epsilon")

    def update(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> State:
        per_example = log_losses(self.name, labels, probabilities, self.epsilon)
        add_weighted(state, per_example, weights_of(self.name, weights, len(per_example)))
        return state

    def compute(self, state: State) -> float:
        return mean_of(state)


def log_losses(
    name: str, labels: ArrayLike, probabilities: ArrayLike, epsilon: float
) -> NDArray[np.float64]:
    """Returns the log loss of each probability; InvalidArgumentError, which names the metric."""
    truth, given = pairs(name, labels, probabilities)
    check_labels(f"metric {name!r}", truth)
    per_example = np.empty(len(truth), dtype=np.float64)
    refuse_probabilities(name, losses.log_losses(truth, given, epsilon, per_example), given)
    return per_example


class OfPredictions(Protocol):
    """What :class:`TrainedLoss` needs of a loss."""

    def of_predictions(
        self, name: str, labels: ArrayLike, predictions: ArrayLike
    ) -> NDArray[np.float64]:
        """Returns the loss of each prediction of a model, for the metric of this name."""


class TrainedLoss(Metric):
    """The mean loss as trained: weights multiply the losses of examples, but not their number."""

    def __init__(self, loss: OfPredictions, name: str = "loss") -> None:
        super().__init__(name, _SHAPE)
        self._loss = loss

    def update(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> State:
        per_example = self._loss.of_predictions(self.name, labels, probabilities)
        by = weights_of(self.name, weights, len(per_example))
        add_weighted(state, per_example if by is None else per_example * by)
        return state

    def compute(self, state: State) -> float:
        return mean_of(state)


class MeanSquaredError(Metric):
    """The mean of (prediction - label)^2 for any numbers; for probabilities, the Brier score.

    State and weights are as in ``Mean``: exact sums of float64, NaN if a number is not finite.
    """

    more_is_better = False

    @refuse_arguments("MeanSquaredError", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "mean_squared_error") -> None:
        super().__init__(name, _SHAPE)

    def update(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> State:
        truth, given = pairs(self.name, labels, probabilities, np.float64)
        by = weights_of(self.name, weights, len(truth))
        add_weighted(state, self._of_errors(given - truth), by)
        return state

    def compute(self, state: State) -> float:
        return mean_of(state)

    @staticmethod
    def _of_errors(errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return errors * errors


class RootMeanSquaredError(MeanSquaredError):
    """The square root of ``MeanSquaredError``, which has the unit of the labels."""

    @refuse_arguments("RootMeanSquaredError", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "root_mean_squared_error") -> None:
        super().__init__(name)

    def compute(self, state: State) -> float:
        mean = mean_of(state)
        return math.sqrt(mean) if mean >= 0 else float("nan")


class MeanAbsoluteError(MeanSquaredError):
    """The mean of |prediction - label|; otherwise like ``MeanSquaredError``."""

    @refuse_arguments("MeanAbsoluteError", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "mean_absolute_error") -> None:
        super().__init__(name)

    @staticmethod
    def _of_errors(errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(errors)


def add_weighted(
    state: State, values: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> None:
    """Adds values with their weights (None: 1) to a state of the form of ``Mean``'s."""
    if weights is None:
        weights = np.array([len(values)], dtype=np.float64)
    else:
        values = values * weights
    add_numbers(state[0], values)
    add_numbers(state[1], weights)


def mean_of(state: State) -> float:
    """Returns the mean of a state; NaN if weights add up to 0 or a value was not finite."""
    weight = exact_sum(state[1])
    if weight == 0 or state[:, -1].any():
        return float("nan")
    return float(exact_sum(state[0]) / weight)


def add_numbers(row: State, values: NDArray[np.float64]) -> None:
    """Adds values exactly to a row of a state of the form of ``Mean``'s."""
    # Kernels are compiled for writable arrays, which those of Arrow are not.
    row[-1] += kernels.add_exactly(np.require(values, requirements=("C", "W")), row[:-1])


def exact_sum(row: NDArray[Any]) -> Fraction:
    """Returns the sum of all finite values that were added to a row of a state."""
    total = sum(int(limb) << (kernels.LIMB_BITS * k) for k, limb in enumerate(row[:-1]))
    return Fraction(total) * Fraction(2) ** kernels.LOWEST_BIT
