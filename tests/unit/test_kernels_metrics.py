"""Counting kernels against exact arithmetic in Python."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pstrain.kernels import metrics

FLOATS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30)


def _value(limbs: np.ndarray) -> Fraction:
    total = sum(int(limb) << (metrics.LIMB_BITS * k) for k, limb in enumerate(limbs))
    return Fraction(total) * Fraction(2) ** metrics.LOWEST_BIT


@given(FLOATS)
def test_sums_of_floats_are_exact(values: list[float]) -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    assert metrics.add_exactly(np.array(values, dtype=np.float64), limbs) == 0
    assert _value(limbs) == sum(map(Fraction, values), Fraction(0))


@given(FLOATS, FLOATS)
def test_limbs_stay_small_so_that_states_can_be_added(
    first: list[float], second: list[float]
) -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    for values in (first, second):
        metrics.add_exactly(np.array(values, dtype=np.float64), limbs)
    assert (limbs[:-1] >= 0).all()
    assert (limbs < 2**32).all()


def test_values_that_are_not_finite_are_counted_apart() -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    values = np.array([1.5, np.nan, np.inf, -np.inf, 5e-324, 1.7e308])
    assert metrics.add_exactly(values, limbs) == 3
    assert _value(limbs) == Fraction(1.5) + Fraction(5e-324) + Fraction(1.7e308)


def test_histogram_counts_labels_per_bin() -> None:
    random = np.random.default_rng(3)
    probabilities = np.append(random.random(500, dtype=np.float32), [0, 1]).astype(np.float32)
    labels = random.integers(0, 2, 502).astype(np.float32)
    histogram = np.zeros((8, 2), dtype=np.int64)
    assert metrics.count_by_probability(labels, probabilities, histogram) == 0
    for label in (0, 1):
        expected, _ = np.histogram(probabilities[labels == label], bins=8, range=(0, 1))
        np.testing.assert_array_equal(histogram[:, label], expected)


def test_probabilities_outside_the_unit_interval_are_not_counted() -> None:
    histogram = np.zeros((4, 2), dtype=np.int64)
    wrong = np.array([-0.1, 1.1, np.nan, 0.5], dtype=np.float32)
    assert metrics.count_by_probability(np.ones(4, np.float32), wrong, histogram) == 3
    assert histogram.sum() == 1


def test_right_answers() -> None:
    labels = np.array([0, 1, 1, 0], dtype=np.float32)
    probabilities = np.array([0.2, 0.9, 0.5, 0.7], dtype=np.float32)
    assert metrics.count_right(labels, probabilities, 0.5) == 2
    assert metrics.count_right(labels, probabilities, 0.4) == 3
