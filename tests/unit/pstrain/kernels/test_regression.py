"""Regression kernels against NumPy in float64, near the label and far from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pstrain.kernels import regression

OUTPUTS = np.array([-2e4, -3, 0.5, 2.0, 2.0, 1e6, 0.1], dtype=np.float32)
LABELS = np.array([1, -3.25, 2.5, 2.0, 0.5, -1e6, 0.3], dtype=np.float32)
NOTHING = np.empty(0, dtype=np.float32)
DELTA = 1.5

ERRORS = OUTPUTS.astype(np.float64) - LABELS
FAR = np.abs(ERRORS) > DELTA
TWINS: list[tuple[Callable[..., Any], Any, Any]] = [
    (regression.squared_errors, ERRORS**2, 2 * ERRORS),
    (regression.absolute_errors, np.abs(ERRORS), np.sign(ERRORS)),
    (
        lambda *arrays: regression.huber_errors(*arrays, DELTA),
        np.where(FAR, DELTA * (np.abs(ERRORS) - DELTA / 2), ERRORS**2 / 2),
        np.where(FAR, DELTA * np.sign(ERRORS), ERRORS),
    ),
]


@pytest.mark.parametrize(("kernel", "losses", "slopes"), TWINS)
def test_mean_and_gradient_agree_with_numpy(kernel: Any, losses: Any, slopes: Any) -> None:
    gradient = np.empty_like(OUTPUTS)
    mean = kernel(OUTPUTS, LABELS, NOTHING, gradient)
    np.testing.assert_allclose(mean, np.mean(losses), rtol=1e-12)
    np.testing.assert_allclose(gradient, slopes / len(LABELS), rtol=1e-6)


@pytest.mark.parametrize(("kernel", "losses", "slopes"), TWINS)
def test_weighted_mean_and_gradient_agree_with_numpy(kernel: Any, losses: Any, slopes: Any) -> None:
    weights = np.linspace(-1, 3, len(LABELS)).astype(np.float32)
    gradient = np.empty_like(OUTPUTS)
    mean = kernel(OUTPUTS, LABELS, weights, gradient)
    wide = weights.astype(np.float64)
    np.testing.assert_allclose(mean, np.sum(wide * losses) / len(LABELS), rtol=1e-12)
    np.testing.assert_allclose(gradient, wide * slopes / len(LABELS), rtol=1e-6)


@pytest.mark.parametrize("kernel", [kernel for kernel, *_ in TWINS])
def test_mean_of_no_rows_is_zero(kernel: Any) -> None:
    assert kernel(NOTHING, NOTHING, NOTHING, NOTHING) == 0.0


@pytest.mark.parametrize("kernel", [kernel for kernel, *_ in TWINS])
def test_output_that_is_not_a_number_makes_the_mean_and_its_slope_none(kernel: Any) -> None:
    gradient = np.zeros(2, np.float32)
    mean = kernel(np.array([np.nan, 1], np.float32), np.zeros(2, np.float32), NOTHING, gradient)
    assert np.isnan(mean)
    assert np.isnan(gradient).tolist() == [True, False]
