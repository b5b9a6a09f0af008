"""Products of pairs of vectors, and their gradients, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import interaction

SHAPES = [(1, 1, 0), (2, 3, 0), (5, 16, 3), (9, 11, 1), (27, 8, 0)]


def _vectors(count: int, dim: int, spare: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    matrix = random.normal(size=(6, count * dim + spare)).astype(np.float32)
    return matrix, matrix[:, : count * dim].reshape(6, count, dim).astype(np.float64)


@pytest.mark.parametrize(("count", "dim", "spare"), SHAPES)
def test_pair_dots_and_gradients_agree_with_numpy(count: int, dim: int, spare: int) -> None:
    matrix, vectors = _vectors(count, dim, spare)
    lower = np.tril_indices(count, -1)
    out = np.empty((6, len(lower[0])), np.float32)
    interaction.pair_dots(matrix, count, dim, out)
    products = np.einsum("nfk,ngk->nfg", vectors, vectors)
    np.testing.assert_allclose(out, products[:, *lower], rtol=1e-4, atol=1e-5)

    weights = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    found = np.full(matrix.shape, np.nan, np.float32)
    interaction.pair_dots_gradient(weights, matrix, count, dim, found)
    full = np.zeros((6, count, count))
    full[:, *lower] = weights
    expected = np.einsum("nfg,ngk->nfk", full + full.transpose(0, 2, 1), vectors)
    np.testing.assert_allclose(
        found[:, : count * dim], expected.reshape(6, -1), rtol=1e-4, atol=1e-5
    )
    assert not found[:, count * dim :].any()


@pytest.mark.parametrize(("count", "dim", "spare"), SHAPES)
def test_pair_sums_and_gradients_agree_with_numpy(count: int, dim: int, spare: int) -> None:
    matrix, vectors = _vectors(count, dim, spare)
    sums, out = np.empty((6, dim), np.float32), np.empty(6, np.float32)
    interaction.pair_sums(matrix, count, sums, out)
    total = vectors.sum(axis=1)
    expected = 0.5 * ((total**2).sum(axis=1) - (vectors**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums, total, rtol=1e-5, atol=1e-5)

    weights = np.random.default_rng(0).normal(size=6).astype(np.float32)
    found = np.full(matrix.shape, np.nan, np.float32)
    interaction.pair_sums_gradient(weights, matrix, count, sums, found)
    gradient = weights[:, None, None] * (total[:, None] - vectors)
    np.testing.assert_allclose(
        found[:, : count * dim], gradient.reshape(6, -1), rtol=1e-4, atol=1e-5
    )
    assert not found[:, count * dim :].any()
