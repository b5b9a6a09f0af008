"""Metrics of binary classification: area under the ROC curve, and metrics with a threshold.

Knows nothing of models. Invariant: weights are added as integers, in units of 2^-40, so sums do
not depend on the order of additions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import integer_at_least, non_negative
from pstrain.errors import InvalidArgumentError
from pstrain.kernels import metrics as kernels
from pstrain.metrics.base import (
    Metric,
    State,
    pairs,
    refuse_heavy,
    refuse_labels,
    refuse_probabilities,
    weights_of,
)
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments

_NO_WEIGHTS: NDArray[np.float64] = np.empty(0, np.float64)

# Labels, probabilities and weights.
_Examples: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]


class _KernelMetric(Metric):
    """The base of metrics that a kernel counts; the kernel skips invalid probabilities."""

    more_is_better = True
    of_probabilities = True

    def update(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
    ) -> State:
        examples = _examples(self.name, labels, probabilities, weights)
        refuse_probabilities(self.name, self._count(examples, state), examples[1])
        return state

    @abstractmethod
    def _count(self, examples: _Examples, state: State) -> int:
        """Adds examples to ``state``; returns how many with invalid probabilities it skipped."""


class AUC(_KernelMetric):
    """The area under the ROC curve, by the trapezoid rule over a histogram of probabilities.

    State, int64 [bins, 2, 2]: the weight of examples of label 0 and of label 1 per bin of
    probability, in units of 2^-8 and of 2^-40. Examples in one bin count as ties, so the error is
    at most half the share of pairs that fall into one bin. NaN until both labels were seen. Weights
    are rounded to units of 2^-40; a weight below half a unit becomes 0.
    """

    @refuse_arguments("AUC", foreign_arguments.AUC)
    def __init__(self, name: str = "auc", bins: int = 2**15) -> None:
        bins = integer_at_least(bins, 2, "bins")
        super().__init__(name, (bins, 2, 2))

    def _count(self, examples: _Examples, state: State) -> int:
        return int(kernels.count_by_probability(*examples, state))

    def compute(self, state: State) -> float:
        return float(kernels.area_under_curve(state))

    def add_state(self, state: State) -> None:
        """Merges ``state`` into this object's own state; sends only bins that hold examples."""
        # A search for true values takes a third of the time of a search for numbers.
        held = np.flatnonzero(state.reshape(-1) != 0) // state[0].size
        bins = held[np.diff(held, prepend=-1) > 0]
        if len(bins):
            self._own_variable().scatter_add(bins, state[bins])


class _ConfusionMetric(_KernelMetric):
    """The base of metrics of 0-1 predictions: 1 if a probability is above ``threshold``.

    State, int64 [label, prediction, 2]: the weight of examples, in units of 2^-8 and of 2^-40.
    """

    def __init__(self, name: str, threshold: float) -> None:
        super().__init__(name, (2, 2, 2))
        self.threshold = non_negative(threshold, "threshold")
        if threshold > 1:
            raise InvalidArgumentError(f"threshold is a probability, got {threshold}")

    def _count(self, examples: _Examples, state: State) -> int:
        return int(kernels.count_confusion(*examples, self.threshold, state))


class Accuracy(_ConfusionMetric):
    """The share of examples whose probability is on the label's side of ``threshold``.

    Weights are as in ``AUC``.
    """

    @refuse_arguments("Accuracy", foreign_arguments.NEW_METRIC)
    def __init__(self, name: str = "accuracy", threshold: float = 0.5) -> None:
        super().__init__(name, threshold)

    def compute(self, state: State) -> float:
        counts = _exact(state)
        return _ratio(counts[0, 0] + counts[1, 1], counts.sum())


class Precision(_ConfusionMetric):
    """The share of label 1 among the examples with a probability above ``threshold``.

    NaN if no probability is above it, where Keras returns 0. Weights are as in ``AUC``.
    """

    @refuse_arguments("Precision", foreign_arguments.PRECISION_RECALL)
    def __init__(self, name: str = "precision", threshold: float = 0.5) -> None:
        super().__init__(name, threshold)

    def compute(self, state: State) -> float:
        counts = _exact(state)
        return _ratio(counts[1, 1], counts[:, 1].sum())


class Recall(_ConfusionMetric):
    """The share of probabilities above ``threshold`` among the examples with label 1.

    NaN if no example has label 1, where Keras returns 0. Weights are as in ``AUC``.
    """

    @refuse_arguments("Recall", foreign_arguments.PRECISION_RECALL)
    def __init__(self, name: str = "recall", threshold: float = 0.5) -> None:
        super().__init__(name, threshold)

    def compute(self, state: State) -> float:
        counts = _exact(state)
        return _ratio(counts[1, 1], counts[1].sum())


def _examples(
    name: str, labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None
) -> _Examples:
    """Returns checked arrays for the kernels; the array of weights is empty if there are none."""
    truth, predicted = pairs(name, labels, probabilities)
    refuse_labels(name, truth)
    found = weights_of(name, weights, len(truth))
    if found is None:
        return truth, predicted, _NO_WEIGHTS
    refuse_heavy(name, found)
    # Kernels are compiled for writable arrays.
    return truth, predicted, np.require(found, np.float64, ("C", "W"))


def _exact(state: State) -> NDArray[Any]:
    """Returns weights as Python integers, in units of 2^-40."""
    exact = state.astype(object)
    return (exact[..., 0] << kernels.LIMB_BITS) + exact[..., 1]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
