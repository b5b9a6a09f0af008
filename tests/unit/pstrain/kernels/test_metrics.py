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
def test_add_exactly_sums_floats_exactly(values: list[float]) -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    assert metrics.add_exactly(np.array(values, dtype=np.float64), limbs) == 0
    assert _value(limbs) == sum(map(Fraction, values), Fraction(0))


@given(FLOATS, FLOATS)
def test_limbs_stay_below_32_bits_so_that_states_can_be_added(
    first: list[float], second: list[float]
) -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    for values in (first, second):
        metrics.add_exactly(np.array(values, dtype=np.float64), limbs)
    assert (limbs[:-1] >= 0).all()
    assert (limbs < 2**32).all()


def test_non_finite_values_are_counted_and_left_out_of_sum() -> None:
    limbs = np.zeros(metrics.LIMBS, dtype=np.int64)
    values = np.array([1.5, np.nan, np.inf, -np.inf, 5e-324, 1.7e308])
    assert metrics.add_exactly(values, limbs) == 3
    assert _value(limbs) == Fraction(1.5) + Fraction(5e-324) + Fraction(1.7e308)


NO_WEIGHTS = np.empty(0)


def _weight(pairs: np.ndarray) -> np.ndarray:
    return pairs[..., 0] / 2.0**8 + pairs[..., 1] / 2.0**40


def test_histogram_counts_labels_per_bin() -> None:
    random = np.random.default_rng(3)
    probabilities = np.append(random.random(500, dtype=np.float32), [0, 1]).astype(np.float32)
    labels = random.integers(0, 2, 502).astype(np.float32)
    weights = random.random(502)
    for given_weights in (NO_WEIGHTS, weights):
        histogram = np.zeros((8, 2, 2), dtype=np.int64)
        args = (labels, probabilities, given_weights, histogram)
        assert metrics.count_by_probability(*args) == 0
        for label in (0, 1):
            mine = labels == label
            by = given_weights[mine] if len(given_weights) else None
            expected, _ = np.histogram(probabilities[mine], bins=8, range=(0, 1), weights=by)
            np.testing.assert_allclose(_weight(histogram[:, label]), expected, rtol=1e-9)


@given(st.lists(st.tuples(*[st.integers(0, 2**40)] * 2), min_size=2, max_size=12))
def test_area_under_curve_agrees_with_pair_counting(histogram: list[tuple[int, int]]) -> None:
    counts = np.array(histogram, dtype=np.int64)
    halves = np.stack([counts // 2, (counts - 2 * (counts // 2)) << 31], axis=-1)
    (negatives, positives), pairs = counts.sum(axis=0).tolist(), 0
    for bin_, (negative, _) in enumerate(histogram):
        pairs += negative * sum(2 * row[1] for row in histogram[bin_ + 1 :])
        pairs += negative * histogram[bin_][1]
    area = metrics.area_under_curve(halves)
    if not negatives * positives:
        assert np.isnan(area)
    else:
        np.testing.assert_allclose(area, pairs / (2 * negatives * positives), rtol=1e-9)


def test_probabilities_outside_unit_interval_are_not_counted() -> None:
    wrong = np.array([-0.1, 1.1, np.nan, 0.5], dtype=np.float32)
    histogram = np.zeros((4, 2, 2), dtype=np.int64)
    labels = np.ones(4, np.float32)
    assert metrics.count_by_probability(labels, wrong, NO_WEIGHTS, histogram) == 3
    assert _weight(histogram).sum() == 1
    counts = np.zeros((2, 2, 2), dtype=np.int64)
    assert metrics.count_confusion(labels, wrong, NO_WEIGHTS, 0.5, counts) == 3
    assert _weight(counts).tolist() == [[0, 0], [1, 0]]


def test_confusion_counts_answers_by_label_and_threshold() -> None:
    labels = np.array([0, 1, 1, 0], dtype=np.float32)
    probabilities = np.array([0.2, 0.9, 0.5, 0.7], dtype=np.float32)
    for threshold, weights, expected in (
        (0.5, NO_WEIGHTS, [[1, 1], [1, 1]]),
        (0.4, NO_WEIGHTS, [[1, 1], [0, 2]]),
        (0.4, np.array([0.5, 3.0, 1.25, -2.0]), [[0.5, -2], [0, 4.25]]),
    ):
        counts = np.zeros((2, 2, 2), dtype=np.int64)
        assert metrics.count_confusion(labels, probabilities, weights, threshold, counts) == 0
        assert _weight(counts).tolist() == expected


@given(st.lists(st.floats(-(2.0**22), 2.0**22, width=32), max_size=30))
def test_weight_sum_is_exact_and_low_part_stays_below_32_bits(weights: list[float]) -> None:
    total = np.zeros(2, dtype=np.int64)
    for row in range(len(weights)):
        metrics.add_weight(np.array(weights), row, total)
    assert 0 <= total[1] < 2**32
    expected = sum(round(Fraction(weight) * 2**40) for weight in weights)
    assert int(total[0]) * 2**32 + int(total[1]) == expected
