"""Initial rows: a function of (seed, row, column) alone, with the distributions they claim."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from pstrain.kernels import initializers

_M64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

RANGE = np.empty(0, np.int64)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _M64
    return state ^ (state >> 31)


def _unit(seed: int, row: int, column: int) -> float:
    key = _mix((_mix((seed + _GOLDEN) & _M64) + row * _GOLDEN) & _M64)
    bits = _mix((key + (column + 1) * _GOLDEN) & _M64)
    return ((bits >> 11) + 0.5) / (1 << 53)


def _uniform(rows: int, width: int, *, seed: int = 7, start: int = 0) -> np.ndarray:
    out = np.full((rows, width + 1), 9.0, np.float32)
    initializers.uniform_rows(out, width, seed, start, RANGE, -1.0, 3.0)
    assert (out[:, width] == 9.0).all()
    return out[:, :width]


def test_uniform_values_are_splitmix64_of_seed_row_and_column() -> None:
    expected = [[-1 + 4 * _unit(7, 50 + r, c) for c in range(3)] for r in range(4)]
    np.testing.assert_allclose(_uniform(4, 3, start=50), expected, rtol=1e-6)


def test_initial_rows_do_not_depend_on_shard_start() -> None:
    whole = _uniform(100, 5)
    for start, stop in ((0, 33), (33, 34), (34, 100)):
        np.testing.assert_array_equal(_uniform(stop - start, 5, start=start), whole[start:stop])


def test_initial_values_differ_by_seed_row_and_column() -> None:
    values = np.concatenate([_uniform(50, 4, seed=s).ravel() for s in range(4)])
    assert len(np.unique(values)) > 0.99 * len(values)


@pytest.mark.parametrize("p", [1e-12, 1e-3, 0.02, 0.3, 0.5, 0.77, 0.98, 1 - 1e-9])
def test_normal_quantile_agrees_with_standard_library(p: float) -> None:
    expected = NormalDist().inv_cdf(p)
    assert initializers.normal_quantile(p) == pytest.approx(expected, rel=2e-9, abs=1e-9)


def test_normal_rows_have_given_moments_and_truncation_bounds_them() -> None:
    out = np.empty((5000, 2), np.float32)
    initializers.normal_rows(out, 2, 1, 0, RANGE, 3.0, 2.0, 0.0)
    assert out.mean() == pytest.approx(3.0, abs=0.1)
    assert out.std() == pytest.approx(2.0, rel=0.05)
    assert np.abs(out - 3.0).max() > 5.0
    initializers.normal_rows(out, 2, 1, 0, RANGE, 3.0, 2.0, 0.022750131948179195)
    assert np.abs(out - 3.0).max() <= 4.0 + 1e-5


def test_single_rows_have_the_values_that_they_have_in_a_range() -> None:
    whole, some = np.empty((9, 3), np.float32), np.empty((2, 3), np.float32)
    rows = np.array([7, 2])
    for fill, arguments in (
        (initializers.uniform_rows, (-1.0, 3.0)),
        (initializers.normal_rows, (0.0, 1.0, 0.0)),
    ):
        fill(whole, 3, 5, 0, RANGE, *arguments)
        fill(some, 3, 5, 0, rows, *arguments)
        np.testing.assert_array_equal(some, whole[rows])
