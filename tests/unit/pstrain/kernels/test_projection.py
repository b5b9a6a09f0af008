"""Per-field projection kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.features.field_groups import group_rows
from pstrain.kernels import projection, projection_gradients
from pstrain.kernels.vectors import LANES

FIELDS, VALUES, COLUMNS = 3, 5, projection.COLUMNS
RANDOM = np.random.default_rng(6)


def _normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def _inverse(size: int, values: int) -> tuple[np.ndarray, int]:
    """Returns the rows of ids of three fields, some ids in two of them, and the number of rows."""
    ids = np.stack([RANDOM.integers(0, values, size) + k * values // 2 for k in range(3)], axis=1)
    unique, inverse = np.unique(ids.reshape(-1), return_inverse=True)
    mixed = RANDOM.permutation(len(unique))
    return mixed[inverse].astype(np.int32), len(unique)


# From no examples to so many that a field has more rows than the kernel takes at a time.
@pytest.mark.parametrize(("size", "values"), [(0, 1), (1, 1), (7, 3), (300, 100), (300, 600)])
@pytest.mark.parametrize("units", [COLUMNS, 4 * COLUMNS, 5 * COLUMNS])
@pytest.mark.parametrize("dim", [LANES, 2 * LANES, 3 * LANES])
@pytest.mark.parametrize("weight", [0, 1])
@pytest.mark.parametrize("values_dense", [0, 5])
def test_projections_and_gradients_agree_with_numpy(
    size: int, values: int, units: int, weight: int, values_dense: int, dim: int
) -> None:
    inverse, unique = _inverse(size, values)
    groups = group_rows(inverse, FIELDS)
    grouped = (groups.order, groups.starts, groups.middles)
    rows, dense = _normal(unique, weight + dim), _normal(size, values_dense)
    kernel, bias = _normal(FIELDS * dim + values_dense, units), _normal(1, units)
    for array in (rows, dense, kernel, bias):
        array.flags.writeable = False
    projected, hidden = _normal(len(groups.firsts), units), _normal(size, units)
    projection.begin_hidden(dense, kernel, bias, hidden)
    projection.add_unrepeated(rows, *grouped, groups.examples, kernel, hidden)
    projection.project_repeated(rows, *grouped, kernel, projected)
    projection.add_repeated(projected, groups.repeated, hidden)
    embedded = rows[inverse][:, weight:].reshape(size, FIELDS * dim)
    inputs = np.concatenate([embedded, dense], axis=1)
    np.testing.assert_allclose(hidden, np.maximum(inputs @ kernel + bias, 0), atol=2e-4)

    gradient = _normal(size, units)
    to_rows, to_kernel = np.zeros_like(rows), np.zeros_like(kernel)
    projection_gradients.project_gradients(
        gradient,
        rows,
        *grouped,
        groups.examples,
        groups.firsts,
        groups.ends,
        np.ascontiguousarray(kernel[: FIELDS * dim].T),
        to_rows,
        to_kernel,
        False,
    )
    if values_dense:
        every = np.arange(size, dtype=np.int32)
        projection_gradients.add_outer_products(
            dense, every, 0, gradient, every, to_kernel, FIELDS * dim
        )
    np.testing.assert_allclose(to_kernel, inputs.T @ gradient, rtol=1e-4, atol=5e-3)
    expected = np.zeros_like(rows)
    to_embedded = (gradient @ kernel[: FIELDS * dim].T).reshape(-1, dim)
    np.add.at(expected[:, weight:], inverse, to_embedded)
    np.testing.assert_allclose(to_rows, expected, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("weight", [0, 1])
def test_gradients_of_unrepeated_rows_overwrite_uninitialized_memory(weight: int) -> None:
    ids = RANDOM.integers(0, 20, (40, FIELDS)) + 20 * np.arange(FIELDS)
    unique, inverse = np.unique(ids.reshape(-1), return_inverse=True)
    order, starts, middles, _, *listed = group_rows(inverse.astype(np.int32), FIELDS)
    rows, gradient = _normal(len(unique), weight + LANES), _normal(40, COLUMNS)
    rows.flags.writeable = False
    transposed = _normal(COLUMNS, FIELDS * LANES)
    found = []
    for each_once, start in ((False, 0), (True, np.nan)):
        to_rows, to_kernel = np.full_like(rows, start), np.zeros_like(transposed.T)
        grouped = (order, starts, middles, *listed)
        projection_gradients.project_gradients(
            gradient, rows, *grouped, transposed, to_rows, to_kernel, each_once
        )
        found.append(to_rows)
    np.testing.assert_array_equal(*found)


def test_wide_part_and_its_gradient_agree_with_numpy() -> None:
    inverse, unique = _inverse(9, VALUES)
    order, starts, middles, _, *listed = group_rows(inverse, FIELDS)
    rows, wide = _normal(unique, 1 + LANES), np.full(9, 0.5, np.float32)
    rows.flags.writeable = False
    projection.add_wide(rows, order, starts, middles, *listed, wide)
    expected = 0.5 + rows[inverse, 0].reshape(9, FIELDS).sum(axis=1)
    np.testing.assert_allclose(wide, expected, rtol=1e-5, atol=1e-6)
    to_rows, added = np.zeros_like(rows), np.zeros_like(rows)
    projection_gradients.add_wide_gradient(wide, order, starts, middles, *listed, to_rows)
    np.add.at(added[:, 0], inverse, np.repeat(wide, FIELDS))
    np.testing.assert_allclose(to_rows, added, rtol=1e-5, atol=1e-6)
