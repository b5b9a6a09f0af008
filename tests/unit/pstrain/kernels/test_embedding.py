"""Gather and scatter kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import embedding

FIELDS, UNIQUE, EXAMPLES = 3, 6, 5
# Widths of vectors of each kind, and widths that leave a remainder.
DIMS = [1, 4, 8, 16, 17, 27, 32]


@pytest.fixture
def inverse() -> np.ndarray:
    return np.random.default_rng(1).integers(0, UNIQUE, EXAMPLES * FIELDS).astype(np.int32)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dim", DIMS)
def test_gather_fields_places_rows_of_example_side_by_side(inverse: np.ndarray, dim: int) -> None:
    rows = _random(UNIQUE, dim)
    out = np.full((EXAMPLES, FIELDS * dim + 2), 7.0, dtype=np.float32)
    embedding.gather_fields(rows, inverse, FIELDS, out)
    np.testing.assert_array_equal(out[:, :-2], rows[inverse].reshape(EXAMPLES, -1))
    assert (out[:, -2:] == 7.0).all()


@pytest.mark.parametrize("dim", DIMS)
def test_scatter_fields_sums_gradients_of_repeated_ids(inverse: np.ndarray, dim: int) -> None:
    gradient = _random(EXAMPLES, FIELDS * dim + 2)
    out = _random(UNIQUE, dim)
    expected = out.copy()
    np.add.at(expected, inverse, gradient[:, : FIELDS * dim].reshape(-1, dim))
    embedding.scatter_fields(gradient, inverse, FIELDS, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [0, *DIMS])
def test_wide_and_deep_parts_of_rows_are_gathered_together(inverse: np.ndarray, dim: int) -> None:
    rows, bias = _random(UNIQUE, 1 + dim), _random(1)
    out = np.full((EXAMPLES, FIELDS * dim + 1), 7.0, dtype=np.float32)
    wide = np.empty(EXAMPLES, dtype=np.float32)
    embedding.gather_wide_deep(rows, bias, inverse, FIELDS, out, wide)
    np.testing.assert_array_equal(out[:, :-1], rows[inverse, 1:].reshape(EXAMPLES, -1))
    assert (out[:, -1] == 7.0).all()
    sums = bias + rows[inverse, 0].reshape(EXAMPLES, FIELDS).sum(axis=1)
    np.testing.assert_allclose(wide, sums, rtol=1e-5)


@pytest.mark.parametrize("dim", [0, *DIMS])
def test_wide_and_deep_gradients_are_scattered_together(inverse: np.ndarray, dim: int) -> None:
    gradient, wide = _random(EXAMPLES, FIELDS * dim + 1), _random(EXAMPLES)
    out = _random(UNIQUE, 1 + dim)
    expected = out.copy()
    np.add.at(expected[:, 0], inverse, np.repeat(wide, FIELDS))
    deep = np.ascontiguousarray(gradient[:, : FIELDS * dim]).reshape(EXAMPLES * FIELDS, dim)
    np.add.at(expected[:, 1:], inverse, deep)
    embedding.scatter_wide_deep(gradient, wide, inverse, FIELDS, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
