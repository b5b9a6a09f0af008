"""Pooling kernels against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pstrain.kernels import pooling

SIZES = [2, 0, 3, 1, 0, 4]
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
VALUES = int(OFFSETS[-1])
RANDOM = np.random.default_rng(3)
WEIGHTS = RANDOM.uniform(0.5, 2.0, VALUES).astype(np.float32)


def _scales(weights: np.ndarray, rule: int) -> np.ndarray:
    parts = []
    for start, stop in itertools.pairwise(OFFSETS):
        bag = weights[start:stop].astype(np.float64)
        divisors = {pooling.SUM: 1.0, pooling.MEAN: bag.sum(), pooling.SQRTN: (bag**2).sum() ** 0.5}
        parts.append(bag / divisors[rule] if len(bag) else bag)
    return np.concatenate(parts)


@pytest.mark.parametrize("rule", [pooling.SUM, pooling.MEAN, pooling.SQRTN])
@pytest.mark.parametrize("weighted", [True, False])
def test_scale_values_follows_combiner_and_weights(rule: int, weighted: bool) -> None:
    out = np.empty(VALUES, np.float32)
    given = WEIGHTS if weighted else WEIGHTS[:0]
    pooling.scale_values(OFFSETS, given, rule, out)
    used = WEIGHTS if weighted else np.ones(VALUES, np.float32)
    np.testing.assert_allclose(out, _scales(used, rule), rtol=1e-6)


def test_weights_that_cancel_out_scale_values_to_zero() -> None:
    offsets, out = np.array([0, 2], np.int64), np.empty(2, np.float32)
    pooling.scale_values(offsets, np.array([1.0, -1.0], np.float32), pooling.MEAN, out)
    assert out.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("width", [1, 3, 16])
def test_pooled_rows_and_their_gradients_agree_with_numpy(width: int) -> None:
    rows = RANDOM.normal(size=(5, width)).astype(np.float32)
    inverse = RANDOM.integers(0, 5, VALUES).astype(np.int32)
    matrix = np.zeros((len(SIZES), 5))
    for bag, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        np.add.at(matrix[bag], inverse[start:stop], WEIGHTS[start:stop])
    out = np.full((len(SIZES), width), 7.0, np.float32)
    pooling.pool_rows(rows, inverse, OFFSETS, WEIGHTS, out)
    np.testing.assert_allclose(out, matrix @ rows, rtol=1e-5, atol=1e-6)
    assert not out[1].any()
    gradient = RANDOM.normal(size=out.shape).astype(np.float32)
    back = rows.copy()
    pooling.pool_gradients(gradient, inverse, OFFSETS, WEIGHTS, back)
    np.testing.assert_allclose(back, rows + matrix.T @ gradient, rtol=1e-5, atol=1e-5)


def test_place_rows_interleaves_single_and_pooled_fields() -> None:
    single = np.array([10, 11, 12, 13, 14, 15], np.int32)  # fields 0 and 2 of three examples
    out = np.empty((3, 4), np.int32)
    pooling.place_rows(single, np.array([0, 2]), 100, out)
    assert out.tolist() == [[10, 100, 11, 103], [12, 101, 13, 104], [14, 102, 15, 105]]
