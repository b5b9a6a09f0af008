"""States of several metrics over the same examples, as a function that runs steps keeps them.

Knows nothing of models or of where states are merged. Invariant: a metric is given weights only
where it is to count by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from pstrain.metrics.base import Metric, State


class Tally:
    """Of metrics, among which those in ``weighted`` count examples by their weights."""

    def __init__(self, metrics: Sequence[Metric], weighted: Sequence[Metric]) -> None:
        # Not every metric's update takes weights.
        self._metrics: Sequence[Any] = metrics
        self._is_weighted = [any(each is one for one in weighted) for each in metrics]
        self.states: list[State] = [metric.initial_state() for metric in metrics]

    def add(self, labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None) -> None:
        """Adds examples to every state; without ``weights`` each counts once."""
        for index, metric in enumerate(self._metrics):
            weighs = weights is not None and self._is_weighted[index]
            by = {"weights": weights} if weighs else {}
            self.states[index] = metric.update(self.states[index], labels, probabilities, **by)
