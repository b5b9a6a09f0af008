"""Figures over groups against their definitions, over all orders of tied rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pstrain.kernels import ranking

# Groups, scores and labels of few values, so that there are ties.
ROWS = st.lists(st.tuples(st.integers(-1, 2), st.integers(-2, 1), st.integers(0, 2)), max_size=10)
NO_WEIGHTS = np.empty(0)


def _sorted(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    keys, scores, labels = np.array(sorted(rows), np.int64).reshape(-1, 3).T.copy()
    return keys, (scores << 32) | labels, labels.astype(np.float32)


def _groups(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Returns [scores, labels] of each group."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    return [table[table[:, 0] == key, 1:].T for key in np.unique(table[:, 0])]


@given(ROWS, st.booleans())
def test_mean_area_agrees_with_pair_counting(
    rows: list[tuple[int, int, int]], are_weighed: bool
) -> None:
    keys, packed, labels = _sorted(rows)
    # A weight is a function of the row, which it finds in the sorted table.
    weights = np.exp2(labels + keys).astype(np.float64) if are_weighed else NO_WEIGHTS
    areas, total = 0.0, 0.0
    for key in np.unique(keys):
        mine = keys == key
        by = weights[mine] if are_weighed else np.ones(mine.sum())
        scores, positive = packed[mine] >> 32, labels[mine] > 0
        pairs = np.outer(by * positive, by * ~positive)
        won = (scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)
        if pairs.any():
            areas += by.sum() * (pairs * won).sum() / pairs.sum()
            total += by.sum()
    found = ranking.mean_area(keys, packed, labels, weights)
    np.testing.assert_allclose(found, areas / total if total else math.nan, rtol=1e-12)


def _achieved(labels: np.ndarray, k: int) -> np.ndarray:
    """Returns DCG, whether a row is relevant, and how many are, of the first ``k`` rows."""
    first = labels[:k]
    discounts = 1 / np.log2(np.arange(len(first)) + 2)
    return np.array([((2.0**first - 1) * discounts).sum(), (first > 0).any(), (first > 0).sum()])


@given(ROWS.map(lambda rows: rows[:7]), st.integers(1, 4))
def test_ranked_sums_are_means_over_all_orders_of_tied_rows(
    rows: list[tuple[int, int, int]], k: int
) -> None:
    sums, expected = np.zeros(4), np.zeros(4)
    ranking.add_ranked(*_sorted(rows), k, sums)
    for scores, labels in _groups(rows):
        if not labels.any():
            continue
        orders = itertools.permutations(range(len(labels)))
        descending = [o for o in orders if (np.diff(scores[list(o)]) <= 0).all()]
        means = np.mean([_achieved(labels[list(order)], k) for order in descending], axis=0)
        ideal = _achieved(np.sort(labels)[::-1], k)[0]
        expected += [1, means[0] / ideal, means[1], means[2] / (labels > 0).sum()]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def test_large_group_of_ties_has_the_chances_of_a_draw_without_replacement() -> None:
    labels = np.sort(np.arange(1000) % 100 == 0).astype(np.float32)
    keys, sums = np.zeros(1000, np.int64), np.zeros(4)
    ranking.add_ranked(keys, keys, labels, 50, sums)
    missed = math.comb(990, 50) / math.comb(1000, 50)
    np.testing.assert_allclose(sums[2:], [1 - missed, 0.05], rtol=1e-12)
