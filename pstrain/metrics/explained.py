"""The share of the labels' variance that predictions of numbers explain.

Knows nothing of models. Invariant: sums are exact, so they do not depend on the order of additions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import Metric, State, pairs, weights_of
from pstrain.metrics.mean import add_numbers, exact_sum
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_SHAPE: Final = (4, kernels.LIMBS + 1)


class R2Score(Metric):
    """The coefficient of determination: 1 - squared errors / squared distances from the mean label.

    1 for predictions without an error, 0 for those that are as good as the mean of all labels. NaN
    if all labels are the same, or a number is not finite. State, int64 [4, limbs + 1], in the form
    of ``Mean``: the weighted sums of 1, of labels, of their squares, and of squared errors.
    """

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
        ones = np.ones(len(truth)) if by is None else by
        for row, values in zip(state, (1.0, truth, truth**2, (given - truth) ** 2), strict=True):
            add_numbers(row, ones * values)
        return state

    def compute(self, state: State) -> float:
        weight, labels, squares, errors = (exact_sum(row) for row in state)
        if not weight or state[:, -1].any():
            return float("nan")
        spread = squares - labels * labels / weight
        return float(1 - errors / spread) if spread else float("nan")
