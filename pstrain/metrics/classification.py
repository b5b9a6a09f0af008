"""How well probabilities tell two classes apart: area under the ROC curve, right answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dataservice.runtime.arguments import integer_at_least, non_negative
from pstrain import foreign_arguments
from pstrain.errors import InvalidArgumentError
from pstrain.foreign_arguments import instead_of
from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import Metric, State, pairs, refuse_labels, refuse_probabilities


class AUC(Metric):
    """Area under the ROC curve, by the trapezoid rule over a histogram of probabilities.

    State int64 [bins, 2]: examples of label 0 and 1 per bin of probability. Examples in one bin
    count as ties, which bounds the error by half the share of pairs that meet in a bin. NaN until
    both labels were seen.
    """

    @instead_of("AUC", foreign_arguments.AUC)
    def __init__(self, name: str = "auc", bins: int = 2**15) -> None:
        bins = integer_at_least(bins, 2, "bins")
        super().__init__(name, (bins, 2))

    def update(self, state: State, labels: ArrayLike, probabilities: ArrayLike) -> State:
        truth, given = pairs(self.name, labels, probabilities)
        refuse_labels(self.name, truth)
        skipped = kernels.count_by_probability(truth, given, state)
        refuse_probabilities(self.name, skipped, given)
        return state

    def compute(self, state: State) -> float:
        negatives, positives = state[::-1, 0], state[::-1, 1]
        total = float(negatives.sum()) * float(positives.sum())
        if total == 0:
            return float("nan")
        above = np.cumsum(positives) - positives
        area = np.sum(negatives.astype(np.float64) * (2 * above + positives))
        return float(area / (2.0 * total))

    def add_state(self, state: State) -> None:
        """Merges ``state`` into this object's own; only bins that hold examples travel."""
        bins = np.flatnonzero(state.any(axis=1))
        if len(bins):
            self._own().scatter_add(bins, state[bins])


class Accuracy(Metric):
    """Share of examples whose probability lies on the label's side of ``threshold``.

    State int64 [2]: right answers, examples.
    """

    @instead_of("Accuracy", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "accuracy", threshold: float = 0.5) -> None:
        super().__init__(name, (2,))
        self.threshold = non_negative(threshold, "threshold")
        if threshold > 1:
            raise InvalidArgumentError(f"threshold is a probability, got {threshold}")

    def update(self, state: State, labels: ArrayLike, probabilities: ArrayLike) -> State:
        truth, given = pairs(self.name, labels, probabilities)
        refuse_labels(self.name, truth)
        refuse_probabilities(self.name, int(np.sum(~((given >= 0) & (given <= 1)))), given)
        state[0] += kernels.count_right(truth, given, self.threshold)
        state[1] += len(truth)
        return state

    def compute(self, state: State) -> float:
        right, count = state
        return float(right / count) if count else float("nan")
