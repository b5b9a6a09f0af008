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


def _group(inverse: np.ndarray, unique: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots = np.empty((FIELDS, len(inverse) // FIELDS), dtype=np.int32)
    starts, order = np.empty(FIELDS + 1, dtype=np.int64), np.empty(len(inverse), dtype=np.int32)
    projection.order_by_field(inverse, unique, FIELDS, slots, starts, order)
    return slots, starts, order[: starts[-1]]


def _check_groups(inverse: np.ndarray, unique: int) -> int:
    """Checks each field's rows and slots; how many rows there are over all fields."""
    slots, starts, order = _group(inverse, unique)
    for field in range(FIELDS):
        mine = inverse.reshape(-1, FIELDS)[:, field]
        group = order[starts[field] : starts[field + 1]]
        assert group.tolist() == list(dict.fromkeys(mine.tolist()))
        np.testing.assert_array_equal(group[slots[field]], mine)
    return len(order)


def test_rows_are_grouped_by_field() -> None:
    inverse, unique = _inverse()
    assert _check_groups(inverse, unique) == unique


def test_a_row_of_two_fields_is_in_both() -> None:
    assert _check_groups(np.array([0, 1, 2, 3, 0, 0], dtype=np.int32), 4) == 6


def test_nothing_can_be_grouped() -> None:
    _, starts, order = _group(np.empty(0, dtype=np.int32), 0)
    assert starts.tolist() == [0, 0, 0, 0]
    assert not len(order)


@pytest.fixture
def order() -> np.ndarray:
    return RANDOM.permutation(5).astype(np.int32)


def test_rows_are_taken_apart_and_put_together_again(order: np.ndarray) -> None:
    rows = RANDOM.normal(size=(5, 1 + DIM)).astype(np.float32)
    embedded, weights = np.empty((5, DIM), np.float32), np.empty(5, np.float32)
    projection.take_rows(rows, order, embedded, weights)
    np.testing.assert_array_equal(embedded, rows[order, 1:])
    np.testing.assert_array_equal(weights, rows[order, 0])
    out = np.zeros_like(rows)
    projection.place_gradients(order, embedded, weights, out)
    np.testing.assert_array_equal(out, rows)


def test_rows_without_a_weight(order: np.ndarray) -> None:
    rows = RANDOM.normal(size=(5, DIM)).astype(np.float32)
    embedded, weights = np.empty((5, DIM), np.float32), np.ones(5, np.float32)
    projection.take_rows(rows, order, embedded, weights)
    np.testing.assert_array_equal(embedded, rows[order])
    assert not weights.any()
    out = np.zeros_like(rows)
    projection.place_gradients(order, embedded, weights, out)
    np.testing.assert_array_equal(out, rows)


def test_gradients_of_a_row_taken_twice_add_up() -> None:
    order = np.array([0, 0], dtype=np.int32)
    out = np.zeros((1, 1 + DIM), dtype=np.float32)
    projection.place_gradients(order, np.ones((2, DIM), np.float32), np.ones(2, np.float32), out)
    np.testing.assert_array_equal(out, np.full_like(out, 2))


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
