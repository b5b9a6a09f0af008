"""Bias and rectifier kernels against NumPy."""

from __future__ import annotations

import numpy as np

from pstrain.kernels import network

RANDOM = np.random.default_rng(2)
VALUES = RANDOM.normal(size=(7, 5)).astype(np.float32)
BIAS = RANDOM.normal(size=5).astype(np.float32)


def test_bias_is_added_to_every_row() -> None:
    values = VALUES.copy()
    network.add_bias(values, BIAS)
    np.testing.assert_array_equal(values, VALUES + BIAS)


def test_relu_clips_negative_sums_and_propagates_nan() -> None:
    values = VALUES.copy()
    values[0, 0] = np.nan
    network.add_bias_relu(values, BIAS)
    assert np.isnan(values[0, 0])
    np.testing.assert_array_equal(values[1:], np.maximum(VALUES[1:] + BIAS, 0))


def test_relu_gradient_passes_where_output_is_positive() -> None:
    activation = np.maximum(VALUES, 0)
    gradient = RANDOM.normal(size=VALUES.shape).astype(np.float32)
    out, sums = np.empty_like(VALUES), np.ones(5, dtype=np.float32)
    network.relu_gradient(gradient, activation, out, sums)
    expected = gradient * (activation > 0)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(sums, 1 + expected.sum(axis=0), rtol=1e-5)


def test_sigmoid_gradient_is_computed_from_its_output() -> None:
    activation = 1 / (1 + np.exp(-VALUES))
    gradient = RANDOM.normal(size=VALUES.shape).astype(np.float32)
    out, sums = np.empty_like(VALUES), np.ones(5, dtype=np.float32)
    network.sigmoid_gradient(gradient, activation, out, sums)
    expected = gradient * activation * (1 - activation)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(sums, 1 + expected.sum(axis=0), rtol=1e-5)


def test_column_sums_are_added_to_existing_values() -> None:
    sums = np.ones(5, dtype=np.float32)
    network.column_sums(VALUES, sums)
    np.testing.assert_allclose(sums, 1 + VALUES.sum(axis=0), rtol=1e-5)


def test_outer_product_agrees_with_numpy() -> None:
    out = np.empty((7, 5), np.float32)
    network.outer_product(VALUES[:, 0].copy(), BIAS, out)
    np.testing.assert_array_equal(out, np.outer(VALUES[:, 0], BIAS))
