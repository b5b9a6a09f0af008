"""Rows of examples in groups, as integers: the states of metrics by group.

A state, int64 [2, rows] or [3, rows], is columns: the keys of groups, the scores (float32) packed
with the labels, and weights in units of 2^-40. Must not know what metrics make of it. Invariant:
sorted rows are the same in whatever order and parts the rows came.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.metrics.base import State, refuse_heavy
from pstrain.metrics.tally import MergedState

_LABEL_BITS: Final = 32
_UNITS: Final = 2**40
"""How many units a weight of 1 has: as in other metrics, so that products do not become 0."""


def encoded(
    name: str,
    keys: NDArray[np.int64],
    scores: NDArray[np.float32],
    labels: NDArray[np.float32],
    weights: NDArray[np.float64] | None,
) -> State:
    """Returns the rows of examples of metric ``name``; labels are not negative.

    InvalidArgumentError for a score that is NaN, and for a negative or too large weight.
    """
    rows = [keys, _packed(name, scores, labels)]
    if weights is not None:
        rows.append(_units_of(name, weights))
    return np.stack(rows)


def joined(first: State, second: State) -> State:
    """Returns all rows of both; those without weights get 1 if others have weights."""
    height = max(len(first), len(second))
    return np.concatenate([_of_height(first, height), _of_height(second, height)], axis=1)


def in_order(state: State) -> tuple[NDArray[Any], ...]:
    """Returns keys, packed scores and labels, labels and weights (empty without), sorted."""
    # Twice as fast as np.lexsort.
    order = np.argsort(state[-1])
    for row in state[-2::-1]:
        order = order[np.argsort(row[order], kind="stable")]
    rows = state.take(order, axis=1)
    labels = (rows[1] & (2**_LABEL_BITS - 1)).astype(np.uint32).view(np.float32)
    weights = rows[2] / _UNITS if len(rows) > 2 else np.empty(0, np.float64)
    return rows[0], rows[1], labels, weights


class OwnRows:
    """The state that a metric object has got in this process. Thread-safe.

    It stays here: a copy, such as one that is sent to trainers with a function, has no rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.assign(0)

    def __reduce__(self) -> tuple[type[OwnRows], tuple[()]]:
        return OwnRows, ()

    def assign_add(self, state: State) -> None:
        with self._lock:
            self._merged.add(state)

    def assign(self, _nothing: int) -> None:
        self._merged = MergedState(joined, np.empty((2, 0), np.int64))

    def numpy(self) -> State:
        with self._lock:
            return self._merged.value()


def _packed(
    name: str, scores: NDArray[np.float32], labels: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Returns integers in the order of scores, then of labels, which are not negative."""
    if np.isnan(scores).any():
        raise InvalidArgumentError(
            f"metric {name!r} ranks by probabilities, got nan: NaN means that training has diverged"
        )
    # 0 is added to make 0 of -0. The bits of floats are in their order, of negatives in reverse.
    bits = (scores + np.float32(0)).view(np.int32)
    order = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    return (order << _LABEL_BITS) | (labels + np.float32(0)).view(np.uint32)


def _units_of(name: str, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    if (weights < 0).any():
        raise InvalidArgumentError(
            f"metric {name!r} counts examples by weight, got {weights.min():g}: give weights from 0"
        )
    refuse_heavy(name, weights)
    return np.rint(weights * _UNITS).astype(np.int64)


def _of_height(state: State, height: int) -> State:
    """Returns ``state`` with weights of 1 if it has none and ``height`` asks for them."""
    if len(state) == height:
        return state
    return np.concatenate([state, np.full((1, state.shape[1]), _UNITS, np.int64)])
