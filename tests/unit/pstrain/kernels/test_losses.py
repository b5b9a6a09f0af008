"""Cross-entropy kernels against NumPy in float64, at ordinary and extreme logits."""

from __future__ import annotations

import numpy as np

from pstrain.kernels import losses

LOGITS = np.array([-200, -30, -3, -0.5, 0, 0.5, 3, 30, 200, 1], dtype=np.float32)
LABELS = np.array([0, 0, 1, 0, 1, 1, 0, 1, 1, 0], dtype=np.float32)

NOTHING = np.empty(0, dtype=np.float32)


def test_sigmoid_neither_overflows_nor_loses_small_probabilities() -> None:
    out = np.empty_like(LOGITS)
    losses.sigmoid(LOGITS, out)
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-30)


def test_cross_entropy_and_gradient_agree_with_numpy() -> None:
    gradient = np.empty_like(LOGITS)
    mean = losses.cross_entropy(LOGITS, LABELS, NOTHING, gradient)
    wide = LOGITS.astype(np.float64)
    np.testing.assert_allclose(mean, np.mean(np.logaddexp(0, wide) - wide * LABELS), rtol=1e-12)
    with np.errstate(over="ignore"):
        expected = (1 / (1 + np.exp(-wide)) - LABELS) / len(LABELS)
    np.testing.assert_allclose(gradient, expected, rtol=2e-6, atol=1e-12)


def test_weighted_cross_entropy_and_gradient_agree_with_numpy() -> None:
    weights = np.linspace(0, 3, len(LOGITS)).astype(np.float32)
    gradient, plain = np.empty_like(LOGITS), np.empty_like(LOGITS)
    mean = losses.cross_entropy(LOGITS, LABELS, weights, gradient)
    wide = LOGITS.astype(np.float64)
    each = np.logaddexp(0, wide) - wide * LABELS
    np.testing.assert_allclose(mean, np.sum(weights * each) / len(each), rtol=1e-6)
    losses.cross_entropy(LOGITS, LABELS, NOTHING, plain)
    np.testing.assert_allclose(gradient, plain * weights, rtol=1e-6)


def test_cross_entropy_of_no_rows_is_zero() -> None:
    assert losses.cross_entropy(NOTHING, NOTHING, NOTHING, NOTHING) == 0.0


def test_log_losses_clip_probabilities_of_zero_and_one() -> None:
    probabilities = np.array([0.0, 1.0, 0.25, 1.0, 0.25], dtype=np.float32)
    labels = np.array([1, 1, 0, 0, 0.5], dtype=np.float32)
    out = np.empty(5)
    assert losses.log_losses(labels, probabilities, 1e-7, out) == 0
    between = -(np.log(0.25) + np.log(0.75)) / 2
    expected = [-np.log(1e-7), -np.log1p(-1e-7), -np.log(0.75), -np.log(1e-7), between]
    np.testing.assert_allclose(out, expected, rtol=1e-9)


def test_log_losses_count_invalid_probabilities() -> None:
    probabilities = np.array([0.5, np.nan, -0.1, 1.5, 1.0], dtype=np.float32)
    labels = np.zeros(5, dtype=np.float32)
    assert losses.log_losses(labels, probabilities, 1e-7, np.empty(5)) == 3
