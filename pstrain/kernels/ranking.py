"""Figures over groups of rows that are sorted by group, then by score and label, ascending.

A row's order and label are packed in one integer: the upper 32 bits order scores, rows with the
same ones are tied. Knows neither groups' names nor metrics. Invariant: the rows alone decide the
result, not the order in which they were collected, because tied rows count as one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

_SCORE_SHIFT = 32

GROUPS, NDCG, HITS, RECALL = range(4)
"""The places of the sums that ``add_ranked`` makes."""


@njit(nogil=True, cache=True)
def mean_area(keys: Array, packed: Array, labels: Array, weights: Array) -> float:
    """Returns the mean of the groups' areas under the ROC curve, by the groups' weights.

    A group's weight is that of its rows, or their number if there are no weights. Groups without
    weight on both labels are left out; NaN if that leaves none.
    """
    areas, total, at = 0.0, 0.0, 0
    while at < len(keys):
        key = keys[at]
        area, below, above = 0.0, 0.0, 0.0
        while at < len(keys) and keys[at] == key:
            score = packed[at] >> _SCORE_SHIFT
            negative, positive = 0.0, 0.0
            while at < len(keys) and keys[at] == key and packed[at] >> _SCORE_SHIFT == score:
                weight = weights[at] if len(weights) else 1.0
                if labels[at] > 0:
                    positive += weight
                else:
                    negative += weight
                at += 1
            area += positive * (below + 0.5 * negative)
            below += negative
            above += positive
        if below > 0 and above > 0:
            areas += (below + above) * (area / (below * above))
            total += below + above
    return areas / total if total > 0 else math.nan


@njit(nogil=True, cache=True)
def add_ranked(keys: Array, packed: Array, labels: Array, k: int, sums: Array) -> None:
    """Adds, for each group with a label above 0, what its ``k`` highest scores achieve.

    ``sums`` gets the number of groups, and their sums of NDCG (gains 2^label - 1), of the chance of
    a relevant row, and of the share of relevant rows: the means over all orders of tied rows.
    """
    stop = len(keys)
    while stop > 0:
        start = stop - 1
        while start > 0 and keys[start - 1] == keys[stop - 1]:
            start -= 1
        best = np.sort(labels[start:stop])
        if best[-1] > 0:
            ideal = 0.0
            for place in range(min(k, len(best))):
                ideal += (2.0 ** best[-1 - place] - 1.0) / math.log2(place + 2.0)
            gained, missed, found = _achieved(packed[start:stop], labels[start:stop], k)
            sums[GROUPS] += 1.0
            sums[NDCG] += gained / ideal
            sums[HITS] += 1.0 - missed
            sums[RECALL] += found / np.sum(best > 0)
        stop = start


@njit(nogil=True, cache=True)
def _achieved(packed: Array, labels: Array, k: int) -> tuple[float, float, float]:
    """Returns a group's DCG, chance of no relevant row and number of these, in the first ``k``."""
    gained, missed, found = 0.0, 1.0, 0.0
    at, place = len(packed) - 1, 0
    while at >= 0 and place < k:
        first, gain, relevant = at, 0.0, 0
        while first >= 0 and packed[first] >> _SCORE_SHIFT == packed[at] >> _SCORE_SHIFT:
            gain += 2.0 ** labels[first] - 1.0
            relevant += labels[first] > 0
            first -= 1
        tied = at - first
        taken = min(tied, k - place)
        for row in range(taken):
            gained += gain / tied / math.log2(place + row + 2.0)
            missed *= max(0, tied - relevant - row) / (tied - row)
        found += relevant * taken / tied
        at, place = first, place + taken
    return gained, missed, found


def warm_up() -> None:
    """Compiles for float32 labels, with float64 weights or without."""
    keys, labels = np.zeros(1, np.int64), np.ones(1, np.float32)
    mean_area(keys, keys, labels, np.ones(1, np.float64))
    add_ranked(keys, keys, labels, 1, np.zeros(4, np.float64))
