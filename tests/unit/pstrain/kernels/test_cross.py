"""Cross layers' kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import cross

RANDOM = np.random.default_rng(4)


def _normal(rows: int, columns: int, spare: int = 0) -> np.ndarray:
    whole = RANDOM.normal(size=(rows, columns + spare)).astype(np.float32)
    return whole[:, :columns]


@pytest.mark.parametrize("columns", [1, 8, 21])
@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize("padded_last", [0, 3])
def test_cross_values_and_gradients_agree_with_numpy(
    columns: int, padded: int, padded_last: int
) -> None:
    first, last = _normal(6, columns, padded), _normal(6, columns, padded_last)
    projected, bias = _normal(6, columns), _normal(1, columns)
    weights, out = projected + bias, np.full((6, columns), np.nan, np.float32)
    bias.flags.writeable = False
    cross.cross(first, projected, bias, last, out)
    np.testing.assert_allclose(projected, weights, rtol=1e-6)
    np.testing.assert_allclose(out, first * weights + last, rtol=1e-5, atol=1e-6)

    gradient, to_bias = _normal(6, columns), _normal(1, columns)
    for passed_on in (0, 1):
        to_projected, to_first = np.full((2, 6, columns), np.nan, np.float32)
        total = to_bias.copy()
        given = (gradient, first, weights, np.float32(passed_on))
        cross.cross_gradient(*given, to_projected, to_first, total)
        np.testing.assert_allclose(to_projected, gradient * first, rtol=1e-6)
        expected = gradient * (weights + passed_on)
        np.testing.assert_allclose(to_first, expected, rtol=1e-5, atol=1e-6)
        sums = to_bias + (gradient * first).sum(axis=0)
        np.testing.assert_allclose(total, sums, rtol=1e-4, atol=1e-5)
