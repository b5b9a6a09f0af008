"""The states of several metrics over the same examples: of the steps of a function, and merged.

Knows nothing of models, nor of where states come from. Invariant: only weighted metrics are given
weights, and only metrics by group the keys of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pstrain.metrics.base import Metric, State


class Tally:
    """The states of ``metrics``, of which those in ``weighted`` count examples by weight."""

    def __init__(self, metrics: Sequence[Metric], weighted: Sequence[Metric]) -> None:
        # Typed Any, because not every metric's update takes weights.
        self._metrics: Sequence[Any] = metrics
        self._is_weighted = [any(each is one for one in weighted) for each in metrics]
        self.states: list[State] = [metric.initial_state() for metric in metrics]

    def add(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None,
        groups: Mapping[str, NDArray[np.int64]],
    ) -> None:
        """Adds examples to every state; without ``weights`` each example counts once.

        ``groups``: the keys of groups by the name of their column.
        """
        for index, metric in enumerate(self._metrics):
            weighs = weights is not None and self._is_weighted[index]
            by: dict[str, Any] = {"weights": weights} if weighs else {}
            if metric.group is not None:
                by["groups"] = groups[metric.group]
            self.states[index] = metric.update(self.states[index], labels, probabilities, **by)

    @property
    def rows_bytes(self) -> int:
        """The size of the states that grow with each row."""
        both = zip(self._metrics, self.states, strict=True)
        return sum(state.nbytes for metric, state in both if metric.group is not None)


class MergedState:
    """The merged state of many parts of the examples of one metric.

    States that grow are merged only with others of their size, so n of them take log n copies of
    each; states of one size are merged at once.
    """

    def __init__(self, merge: Callable[[State, State], State], initial: State) -> None:
        self._merge, self._parts = merge, [initial]

    def add(self, state: State) -> None:
        self._parts.append(state)
        while len(self._parts) > 1 and self._parts[-1].nbytes >= self._parts[-2].nbytes:
            self._merge_last()

    def value(self) -> State:
        """Returns the state of all parts together; not a copy."""
        while len(self._parts) > 1:
            self._merge_last()
        return self._parts[0]

    def _merge_last(self) -> None:
        last = self._parts.pop()
        self._parts[-1] = self._merge(self._parts[-1], last)


def of_each_row(metrics: Iterable[Metric]) -> list[Metric]:
    """Returns the metrics that ``fit`` counts in training: those that look at no groups of rows."""
    return [metric for metric in metrics if metric.group is None]
