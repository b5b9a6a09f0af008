"""The share of the labels' variance that predictions of numbers explain.

Knows nothing of models. Invariant: sums are exact, so they do not depend on the order of additions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import Metric, State, pairs, weights_of
from pstrain.metrics.mean import add_numbers, exact_sum
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_SHAPE: Final = (4, kernels.LIMBS + 1)

Float64 = NDArray[np.float64]


class R2Score(Metric):
    """The coefficient of determination: 1 - squared errors / squared distances from the mean label.

    1 for predictions without an error, 0 for those that are as good as the mean of all labels. NaN
    if all labels are the same, or a number is not finite. State, int64 [4, limbs + 1], in the form
    of ``Mean``: the weighted sums of 1, of labels, of their squares, and of squared errors.
    """

    more_is_better = True

    @refuse_arguments("R2Score", foreign_arguments.R2_SCORE)
    def __init__(self, name: str = "r2_score") -> None:
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
        with np.errstate(over="ignore", invalid="ignore"):
            errors = (given - truth) ** 2
            add_numbers(state[0], np.array([len(truth)], np.float64) if by is None else by)
            for part in (truth,) if by is None else _product(by, truth):
                add_numbers(state[1], part)
                for square in _product(part, truth):
                    add_numbers(state[2], square)
            add_numbers(state[3], errors if by is None else by * errors)
        return state

    def compute(self, state: State) -> float:
        weight, labels, squares, errors = (exact_sum(row) for row in state)
        if not weight or state[:, -1].any():
            return float("nan")
        # Between labels far from 0 this is a small difference of large sums: none may be rounded.
        spread = squares - labels * labels / weight
        return float(1 - errors / spread) if spread else float("nan")


def _product(first: Float64, second: Float64) -> tuple[Float64, Float64]:
    """Returns the rounded products and their errors, which add up to the exact ones (Dekker)."""
    rounded = first * second
    (high, low), (other_high, other_low) = _halves(first), _halves(second)
    error = high * other_high - rounded
    return rounded, error + high * other_low + low * other_high + low * other_low


def _halves(values: Float64) -> tuple[Float64, Float64]:
    """Returns numbers of 26 bits each that add up to ``values``: their products are exact."""
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high
