"""Metrics of rankings within groups of rows, such as those of one user or of one request.

Knows nothing of models, or of where a batch has its groups. Invariant: a state is all rows seen, as
columns, and a figure is a function of these rows in sorted order, so it is the same bit for bit
however they were divided among batches and trainers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import check_text, integer_at_least
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.features.side_columns import group_keys
from pstrain.kernels import ranking
from pstrain.metrics import group_rows
from pstrain.metrics.base import Metric, State, pairs, refuse_labels, weights_of
from pstrain.metrics.group_rows import OwnRows
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.variables.parameters import current_step

_LABELS_MAX: Final = 31


class GroupMetric(Metric):
    """The base of metrics over groups of rows: those with the same value in column ``group``.

    State, int64 [2, rows], or [3, rows] with weights: see ``group_rows``. ``fit`` computes such a
    metric of its validation data only: an epoch's rows are too many to keep, and their scores are
    of values that change meanwhile. A key is the integer itself, or a hash of 64 bits of a text:
    among six million texts the chance that any two share one is 10^-6.
    """

    group: str
    more_is_better = True

    def __init__(self, name: str, group: str) -> None:
        check_text("group, the name of a column,", group)
        self.group = group
        super().__init__(name, (2, 0))

    def update(
        self, state: State, labels: ArrayLike, probabilities: ArrayLike, groups: Any = None
    ) -> State:
        """Returns ``state`` with examples added.

        ``groups``: integers or strings, [n]; ``probabilities``: any numbers but NaN, [n], which are
        compared as float32.
        """
        return self._with_rows(state, labels, probabilities, groups)

    def _with_rows(
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        groups: Any,
        weights: ArrayLike | None = None,
    ) -> State:
        if groups is None:
            raise InvalidArgumentError(
                f"metric {self.name!r} ranks the rows of each group: give groups=, for each row "
                f"the value of {self.group!r}"
            )
        truth, scores = pairs(self.name, labels, probabilities)
        self._check_labels(truth)
        keys = group_keys(f"metric {self.name!r}: groups", groups)
        if len(keys) != len(truth):
            raise InvalidArgumentError(
                f"metric {self.name!r} got {len(truth)} labels and {len(keys)} groups"
            )
        by = weights_of(self.name, weights, len(truth))
        return self.merge(state, group_rows.encoded(self.name, keys, scores, truth, by))

    @refuse_arguments("update_state", foreign_arguments.METRIC)
    def update_state(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: Any = None,
    ) -> None:
        """Adds examples to this object's own state, which is in this process, in no checkpoint.

        ``groups``: for each example an integer or string, [n]; those with the same one are ranked
        together. ``sample_weight`` is as in other metrics.
        """
        self.add_state(self._state_of(labels, probabilities, sample_weight, groups=groups))

    def add_state(self, state: State) -> None:
        """Merges ``state`` into this object's own state."""
        self._check_place()
        super().add_state(state)

    def reset_state(self) -> None:
        """Resets this object's own state to that before any example."""
        self._check_place()
        super().reset_state()

    reset_states = reset_state

    @staticmethod
    def merge(first: State, second: State) -> State:
        """Returns the state of both sets of examples together."""
        return group_rows.joined(first, second)

    @property
    def variables(self) -> list[Any]:
        return []

    def make_variables(self) -> NoReturn:
        raise InvalidArgumentError(
            f"metric {self.name!r} keeps its rows in this process, in no variable that a "
            "checkpoint could save: leave it out of the checkpoint"
        )

    @abstractmethod
    def _check_labels(self, labels: NDArray[np.float32]) -> None:
        """Raises InvalidArgumentError for labels of which the metric makes nothing."""

    def _current_state(self) -> State:
        self._check_place()
        return super()._current_state()

    def _check_place(self) -> None:
        if current_step() is not None and not self._is_of_step:
            raise FailedPreconditionError(
                f"metric {self.name!r} keeps its rows in the program that made it, so scheduled "
                "functions cannot use them: return metric.update(metric.initial_state(), ...) "
                "from the function, and give metric.add_state(...) what it returned"
            )

    def _create(self) -> OwnRows:
        return OwnRows()

    def _create_of_step(self) -> OwnRows:
        return OwnRows()


class GAUC(GroupMetric):
    """The mean of the groups' areas under the ROC curve, each weighed by its number of examples.

    As in Deep Interest Network (Zhou et al., 2018). Groups with one label only are left out; NaN
    if that leaves none. Ties count half, and areas are exact. An example of weight w counts as w
    examples, in its group's area and in its group's weight, rounded as in ``AUC``. ``group``: the
    column of integers or strings, among those that the data yield, by which ``evaluate`` groups
    rows, and ``fit`` those of its validation data; in training ``fit`` does not compute the metric.
    """

    @refuse_arguments("GAUC", foreign_arguments.NEW_METRIC)
    def __init__(self, *, group: str, name: str = "gauc") -> None:
        super().__init__(name, group)

    def update(  # type: ignore[override]
        self,
        state: State,
        labels: ArrayLike,
        probabilities: ArrayLike,
        weights: ArrayLike | None = None,
        groups: Any = None,
    ) -> State:
        return self._with_rows(state, labels, probabilities, groups, weights)

    def compute(self, state: State) -> float:
        keys, packed, labels, weights = group_rows.in_order(state)
        return float(ranking.mean_area(keys, packed, labels, weights))

    def _check_labels(self, labels: NDArray[np.float32]) -> None:
        refuse_labels(self.name, labels)


class _AtK(GroupMetric):
    """The base of means over groups that look at the ``k`` highest scores of each.

    Takes no weights, because a place in a ranking is that of a whole row.
    """

    _SUM: int

    def __init__(self, name: str, k: int, group: str) -> None:
        self.k = integer_at_least(k, 1, "k")
        super().__init__(name, group)

    def compute(self, state: State) -> float:
        keys, packed, labels, _ = group_rows.in_order(state)
        sums = np.zeros(4, np.float64)
        ranking.add_ranked(keys, packed, labels, self.k, sums)
        return float(sums[self._SUM] / sums[ranking.GROUPS]) if sums[ranking.GROUPS] else np.nan

    def _check_labels(self, labels: NDArray[np.float32]) -> None:
        known = (labels >= 0) & (labels <= _LABELS_MAX)
        if not known.all():
            raise InvalidArgumentError(
                f"metric {self.name!r} needs labels from 0 to {_LABELS_MAX}, got "
                f"{labels[~known][0]:g}: map them to grades, 0 for rows of no relevance"
            )


class NDCG(_AtK):
    """The mean over groups of the normalized discounted cumulative gain of the ``k`` first rows.

    As by Järvelin & Kekäläinen (2002), with discounts 1 / log2(place + 1) and gains 2^label - 1, as
    LightGBM and XGBoost have them; of labels 0 and 1 they are the labels. Labels, ties and groups
    are as in ``HitRate``; ``group`` is as in ``GAUC``.
    """

    _SUM = ranking.NDCG

    @refuse_arguments("NDCG", foreign_arguments.NEW_METRIC)
    def __init__(self, k: int, *, group: str, name: str | None = None) -> None:
        super().__init__(f"ndcg_at_{k}" if name is None else name, k, group)


class HitRate(_AtK):
    """The share of groups with a relevant row among the ``k`` of the highest scores.

    Relevant are labels above 0, which may be grades of up to 31; groups without one are left out,
    NaN if that leaves none. Rows with the same score count as in the mean over all their orders.
    There are no weights. ``group`` is as in ``GAUC``.
    """

    _SUM = ranking.HITS

    @refuse_arguments("HitRate", foreign_arguments.NEW_METRIC)
    def __init__(self, k: int, *, group: str, name: str | None = None) -> None:
        super().__init__(f"hit_rate_at_{k}" if name is None else name, k, group)


class RecallAtK(_AtK):
    """The mean over groups of the share of relevant rows that are among the ``k`` first.

    Labels, ties and groups are as in ``HitRate``; ``group`` is as in ``GAUC``.
    """

    _SUM = ranking.RECALL

    @refuse_arguments("RecallAtK", foreign_arguments.NEW_METRIC)
    def __init__(self, k: int, *, group: str, name: str | None = None) -> None:
        super().__init__(f"recall_at_{k}" if name is None else name, k, group)
