"""Per-field projection kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import projection

FIELDS, SIZE, DIM, UNITS = 3, 7, 2, 4
RANDOM = np.random.default_rng(6)


def _inverse() -> tuple[np.ndarray, int]:
    """Ids of three fields with 2, 5 and 3 values, numbered in order of first appearance."""
    ids = np.stack([RANDOM.integers(0, k, SIZE) + 100 * k for k in (2, 5, 3)], axis=1)
    unique, inverse = np.unique(ids.reshape(-1), return_inverse=True)
    mixed = RANDOM.permutation(len(unique))
    return mixed[inverse].astype(np.int32), len(unique)


def _group(inverse: np.ndarray, unique: int) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray]:
    slots = np.empty((FIELDS, len(inverse) // FIELDS), dtype=np.int32)
    starts, order = np.empty(FIELDS + 1, dtype=np.int64), np.empty(unique, dtype=np.int32)
    apart = projection.order_by_field(inverse, FIELDS, slots, starts, order)
    return apart, slots, starts, order


def test_rows_are_grouped_by_field() -> None:
    inverse, unique = _inverse()
    apart, slots, starts, order = _group(inverse, unique)
    assert apart
    assert sorted(order.tolist()) == list(range(unique))
    for field in range(FIELDS):
        mine = inverse.reshape(SIZE, FIELDS)[:, field]
        group = order[starts[field] : starts[field + 1]]
        assert group.tolist() == sorted(set(mine.tolist()))
        np.testing.assert_array_equal(group[slots[field]], mine)


def test_a_row_of_two_fields_is_noticed() -> None:
    apart, *_ = _group(np.array([0, 1, 2, 3, 0, 4], dtype=np.int32), 5)
    assert not apart


def test_nothing_can_be_grouped() -> None:
    apart, _, starts, _ = _group(np.empty(0, dtype=np.int32), 0)
    assert apart
    assert starts.tolist() == [0, 0, 0, 0]


@pytest.fixture
def order() -> np.ndarray:
    return RANDOM.permutation(5).astype(np.int32)


def test_rows_are_taken_apart_and_put_together_again(order: np.ndarray) -> None:
    rows = RANDOM.normal(size=(5, 1 + DIM)).astype(np.float32)
    embedded, weights = np.empty((5, DIM), np.float32), np.empty(5, np.float32)
    projection.take_rows(rows, order, embedded, weights)
    np.testing.assert_array_equal(embedded, rows[order, 1:])
    np.testing.assert_array_equal(weights, rows[order, 0])
    out = np.full_like(rows, np.nan)
    projection.place_gradients(order, embedded, weights, out)
    np.testing.assert_array_equal(out, rows)


def test_projections_and_their_gradients() -> None:
    slots = RANDOM.integers(0, 3, SIZE).astype(np.int32)
    projected = RANDOM.normal(size=(3, UNITS)).astype(np.float32)
    weights = RANDOM.normal(size=3).astype(np.float32)
    hidden = RANDOM.normal(size=(SIZE, UNITS)).astype(np.float32)
    wide = RANDOM.normal(size=SIZE).astype(np.float32)
    expected = hidden + projected[slots], wide + weights[slots]
    projection.add_projections(projected, weights, slots, hidden, wide)
    np.testing.assert_array_equal(hidden, expected[0])
    np.testing.assert_array_equal(wide, expected[1])
    collected, by_weight = projected.copy(), weights.copy()
    np.add.at(collected, slots, hidden)
    np.add.at(by_weight, slots, wide)
    projection.collect_gradients(hidden, wide, slots, projected, weights)
    np.testing.assert_allclose(projected, collected, rtol=1e-6)
    np.testing.assert_allclose(weights, by_weight, rtol=1e-6)
