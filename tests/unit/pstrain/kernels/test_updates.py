"""Reads and updates of slabs against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import updates

ROWS, START = 40, 1000


def _slab(width: int, slots: int) -> np.ndarray:
    random = np.random.default_rng(width)
    return random.uniform(0.1, 1.0, (ROWS, width * (1 + slots))).astype(np.float32)


def _ids() -> np.ndarray:
    return START + np.random.default_rng(1).permutation(ROWS)[:13].astype(np.int64)


def _gradients(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize("width", [1, 3, 8, 17, 27])
@pytest.mark.parametrize("slots", [0, 1])
def test_gather_rows_returns_values_without_slots(width: int, slots: int) -> None:
    slab, ids = _slab(width, slots), _ids()
    out = np.empty((len(ids), width), np.float32)
    updates.gather_rows(slab, width, START, ids, out)
    np.testing.assert_array_equal(out, slab[ids - START, :width])


@pytest.mark.parametrize("width", [1, 8, 17, 27])
def test_moved_rows_get_initial_slot_values(width: int) -> None:
    old, firsts = _slab(width, 1), np.arange(width + 1, dtype=np.float32)
    new = np.full((ROWS, 2 * width + 1), np.nan, np.float32)
    updates.move_rows(old, width, firsts, new)
    expected = np.hstack([old[:, :width], np.tile(firsts, (ROWS, 1))])
    np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize("width", [1, 8, 17, 27])
@pytest.mark.parametrize("slots", [0, 1])
def test_sgd_changes_values_and_leaves_slots(width: int, slots: int) -> None:
    slab, ids = _slab(width, slots), _ids()
    gradients = _gradients(len(ids), width)
    expected = slab.copy()
    expected[ids - START, :width] -= np.float32(0.1) * gradients
    updates.sgd_rows(slab, width, START, ids, gradients, np.array([0.1, 0.0], np.float32))
    np.testing.assert_allclose(slab, expected, rtol=1e-6)
    whole = _gradients(ROWS, width)
    expected[:, :width] -= np.float32(0.1) * whole
    updates.sgd_all(slab, width, whole, np.array([0.1, 0.0], np.float32))
    np.testing.assert_allclose(slab, expected, rtol=1e-5)


def _adagrad(slab: np.ndarray, rows: np.ndarray, width: int, gradients: np.ndarray) -> None:
    squares = slab[rows, width:] + gradients * gradients
    slab[rows, width:] = squares
    slab[rows, :width] -= np.float32(0.1) * gradients / np.sqrt(squares + np.float32(1e-3))


@pytest.mark.parametrize("width", [1, 8, 17, 27])
def test_adagrad_agrees_with_numpy(width: int) -> None:
    slab, ids = _slab(width, 1), _ids()
    expected = slab.copy()
    hyper = np.array([0.1, 0.0, 1e-3], np.float32)
    gradients = _gradients(len(ids), width)
    _adagrad(expected, ids - START, width, gradients)
    updates.adagrad_rows(slab, width, START, ids, gradients, hyper)
    np.testing.assert_allclose(slab, expected, rtol=1e-5, atol=1e-6)
    whole = _gradients(ROWS, width)
    _adagrad(expected, np.arange(ROWS), width, whole)
    updates.adagrad_all(slab, width, whole, hyper)
    np.testing.assert_allclose(slab, expected, rtol=1e-5, atol=1e-6)


def test_first_outside_returns_position_of_first_id_out_of_range() -> None:
    ids = np.array([5, 9, 10, 4], np.int64)
    assert updates.first_outside(ids, 4, 11) == -1
    assert updates.first_outside(ids, 4, 10) == 2
    assert updates.first_outside(ids, 5, 11) == 3
