"""Pairs of looked-up vectors, and their gradients, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.features.field_groups import group_rows
from pstrain.kernels import factorization
from pstrain.layers.pooling import group_arrays

FIELDS = 3
RANDOM = np.random.default_rng(6)


def _normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def _inverse(size: int, values: int, shared: bool) -> tuple[np.ndarray, int]:
    """Returns the rows of ids of three fields, numbered at random, and the number of rows.

    If ``shared``, some ids occur in two fields.
    """
    apart = values // 2 if shared else values
    ids = np.stack(
        [RANDOM.integers(0, values, size) + k * apart for k in range(FIELDS)], axis=1
    ).reshape(-1)
    unique, inverse = np.unique(ids, return_inverse=True)
    mixed = RANDOM.permutation(len(unique))
    return mixed[inverse].astype(np.int32), len(unique)


@pytest.mark.parametrize(("size", "values"), [(0, 1), (1, 1), (7, 3), (100, 40)])
@pytest.mark.parametrize("dim", [1, 8, 19, 32])
@pytest.mark.parametrize("shared", [False, True])
def test_factorization_values_and_gradients_agree_with_numpy(
    size: int, values: int, dim: int, shared: bool
) -> None:
    inverse, distinct = _inverse(size, values, shared)
    grouped = group_arrays(group_rows(inverse, FIELDS))
    rows = _normal(distinct, 1 + dim)
    rows.flags.writeable = False
    before, out = _normal(size, dim), _normal(size)
    sums, expected = before.copy(), out.copy()
    factorization.add_vectors(rows, *grouped, sums, out)
    factorization.add_half_squares(sums, out)
    each = rows[inverse].reshape(size, FIELDS, 1 + dim)
    vectors = each[:, :, 1:]
    total = before + vectors.sum(axis=1)
    np.testing.assert_allclose(sums, total, rtol=1e-4, atol=1e-5)
    expected += each[:, :, 0].sum(axis=1)
    expected += 0.5 * ((total**2).sum(axis=1) - (vectors**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)

    gradient, weighted = _normal(size), np.empty_like(sums)
    factorization.weigh(gradient, sums, weighted)
    np.testing.assert_allclose(weighted, gradient[:, None] * sums, rtol=1e-6)
    of_rows = np.concatenate(
        [
            np.broadcast_to(gradient[:, None, None], (size, FIELDS, 1)),
            weighted[:, None] - gradient[:, None, None] * vectors,
        ],
        axis=2,
    )
    # Gradients are added to what is in memory; with ``once``, which needs rows of one field
    # each, they replace it.
    for once in [False] if shared else [False, True]:
        to_rows = np.full_like(rows, np.nan) if once else _normal(*rows.shape)
        wanted = np.zeros_like(rows) if once else to_rows.copy()
        np.add.at(wanted, inverse, of_rows.reshape(-1, 1 + dim))
        factorization.vectors_gradient(gradient, weighted, rows, *grouped, to_rows, once)
        np.testing.assert_allclose(to_rows, wanted, rtol=1e-3, atol=1e-3)
