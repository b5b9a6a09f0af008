"""Per-field projection kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import projection
from pstrain.kernels.vectors import LANES

FIELDS, VALUES, COLUMNS = 3, 5, projection.COLUMNS
RANDOM = np.random.default_rng(6)


def _normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def _inverse(size: int, values: int) -> tuple[np.ndarray, int]:
    """Ids of three fields, some of them in two, numbered in no order."""
    ids = np.stack([RANDOM.integers(0, values, size) + k * values // 2 for k in range(3)], axis=1)
    unique, inverse = np.unique(ids.reshape(-1), return_inverse=True)
    mixed = RANDOM.permutation(len(unique))
    return mixed[inverse].astype(np.int32), len(unique)


class _Groups:
    def __init__(self, inverse: np.ndarray, unique: int) -> None:
        size = len(inverse) // FIELDS
        self.places = np.empty((size, FIELDS), np.int32)
        self.starts = np.empty(FIELDS + 1, np.int64)
        order, firsts = np.empty(len(inverse), np.int32), np.empty(len(inverse) + 1, np.int32)
        projection.order_by_field(inverse, unique, self.places, self.starts, order, firsts)
        self.order = order[: self.starts[-1]]
        self.firsts = firsts[: self.starts[-1] + 1]
        self.examples = np.empty(len(inverse), np.int32)
        projection.list_examples(self.places, self.firsts, self.examples)


@pytest.mark.parametrize(("size", "values"), [(0, 1), (1, 1), (7, 3), (300, 100)])
def test_rows_are_grouped_by_field(size: int, values: int) -> None:
    inverse, unique = _inverse(size, values)
    groups = _Groups(inverse, unique)
    np.testing.assert_array_equal(groups.order[groups.places].reshape(-1), inverse)
    for field in range(FIELDS):
        mine = inverse.reshape(-1, FIELDS)[:, field]
        group = groups.order[groups.starts[field] : groups.starts[field + 1]]
        assert group.tolist() == list(dict.fromkeys(mine.tolist()))
    for place in range(len(groups.order)):
        listed = groups.examples[groups.firsts[place] : groups.firsts[place + 1]]
        assert listed.tolist() == np.flatnonzero((groups.places == place).any(axis=1)).tolist()


# So many examples that a field has more rows than are worked on at a time, and none.
@pytest.mark.parametrize(("size", "values"), [(0, 1), (1, 1), (7, 3), (300, 100)])
@pytest.mark.parametrize("units", [COLUMNS, 4 * COLUMNS, 5 * COLUMNS])
@pytest.mark.parametrize("dim", [LANES, 2 * LANES, 3 * LANES])
@pytest.mark.parametrize("weight", [0, 1])
@pytest.mark.parametrize("values_dense", [0, 5])
def test_projections_and_their_gradients(
    size: int, values: int, units: int, weight: int, values_dense: int, dim: int
) -> None:
    inverse, unique = _inverse(size, values)
    groups = _Groups(inverse, unique)
    rows, dense = _normal(unique, weight + dim), _normal(size, values_dense)
    kernel, bias = _normal(FIELDS * dim + values_dense, units), _normal(1, units)
    for array in (rows, dense, kernel, bias):
        array.flags.writeable = False
    projected, hidden = np.empty((len(groups.order), units), np.float32), _normal(size, units)
    projection.project_rows(rows, groups.order, groups.starts, kernel, projected)
    projection.add_projections(projected, groups.places, dense, kernel, bias, hidden)
    embedded = rows[inverse][:, weight:].reshape(size, FIELDS * dim)
    inputs = np.concatenate([embedded, dense], axis=1)
    np.testing.assert_allclose(hidden, np.maximum(inputs @ kernel + bias, 0), atol=2e-4)

    gradient = _normal(size, units)
    to_rows, to_kernel = np.zeros_like(rows), np.zeros_like(kernel)
    projection.project_gradients(
        gradient,
        rows,
        groups.order,
        groups.starts,
        groups.firsts,
        groups.examples,
        np.ascontiguousarray(kernel[: FIELDS * dim].T),
        to_rows,
        to_kernel,
    )
    if values_dense:
        every = np.arange(size, dtype=np.int32)
        projection.add_outer_products(dense, every, 0, gradient, 0, to_kernel, FIELDS * dim)
    np.testing.assert_allclose(to_kernel, inputs.T @ gradient, rtol=1e-4, atol=5e-3)
    expected = np.zeros_like(rows)
    to_embedded = (gradient @ kernel[: FIELDS * dim].T).reshape(-1, dim)
    np.add.at(expected[:, weight:], inverse, to_embedded)
    np.testing.assert_allclose(to_rows, expected, rtol=1e-4, atol=5e-3)


def test_the_wide_part_and_its_gradient() -> None:
    inverse, unique = _inverse(9, VALUES)
    rows, bias, wide = _normal(unique, 1 + LANES), _normal(1), np.empty(9, np.float32)
    projection.add_wide(rows, inverse, FIELDS, bias, wide)
    expected = bias + rows[inverse, 0].reshape(9, FIELDS).sum(axis=1)
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=1e-6)
    to_rows, added = np.zeros_like(rows), np.zeros_like(rows)
    projection.add_wide_gradient(wide, inverse, FIELDS, to_rows)
    np.add.at(added[:, 0], inverse, np.repeat(wide, FIELDS))
    np.testing.assert_allclose(to_rows, added, rtol=1e-5, atol=1e-6)
