"""The states of several metrics over the same examples, kept by a function that runs steps.

Knows nothing of models or of where states are merged. Invariant: only weighted metrics are given
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from pstrain.metrics.base import Metric, State


class Tally:
    """The states of ``metrics``, of which those in ``weighted`` count examples by weight."""

    def __init__(self, metrics: Sequence[Metric], weighted: Sequence[Metric]) -> None:
        # Typed Any, because not every metric's update takes weights.
        self._metrics: Sequence[Any] = metrics
        self._is_weighted = [any(each is one for one in weighted) for each in metrics]
        self.states: list[State] = [metric.initial_state() for metric in metrics]

    def add(self, labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None) -> None:
        """Adds examples to every state; without ``weights`` each example counts once."""
        for index, metric in enumerate(self._metrics):
            weighs = weights is not None and self._is_weighted[index]
            by = {"weights": weights} if weighs else {}
            self.states[index] = metric.update(self.states[index], labels, probabilities, **by)
