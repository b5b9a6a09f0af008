"""Rows changed by other rows, one after another, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.kernels import scatter

START = 100
OPS = [
    (scatter.ADD, np.add),
    (scatter.SUB, np.subtract),
    (scatter.MUL, np.multiply),
    (scatter.DIV, np.divide),
    (scatter.MIN, np.minimum),
    (scatter.MAX, np.maximum),
]
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)


def _given(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a slab with slots, ids, some of which repeat, and one row per id."""
    random = np.random.default_rng(width)
    slab, rows = random.normal(size=(9, 2 * width)), random.normal(size=(40, width))
    slab[7, 0], rows[::7, 0] = np.nan, SPECIAL[random.integers(0, 4, 6)]
    ids = START + random.integers(0, 9, 40)
    given = slab.astype(np.float32), ids, rows.astype(np.float32)
    given[1].flags.writeable = given[2].flags.writeable = False
    return given


@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize(("op", "ufunc"), OPS)
def test_scatter_rows_agrees_with_numpy_ufunc(op: int, ufunc: np.ufunc, width: int) -> None:
    slab, ids, rows = _given(width)
    expected = slab.copy()
    with np.errstate(all="ignore"):
        ufunc.at(expected[:, :width], ids - START, rows)
    scatter.scatter_rows(slab, width, START, ids, rows, op)
    np.testing.assert_array_equal(slab, expected)


def test_scatter_set_keeps_last_row_of_repeated_id() -> None:
    slab, ids, rows = _given(3)
    expected = slab.copy()
    for each, row in zip(ids - START, rows, strict=True):
        expected[each, :3] = row
    scatter.scatter_rows(slab, 3, START, ids, rows, scatter.SET)
    np.testing.assert_array_equal(slab, expected)
