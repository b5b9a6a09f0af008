"""Rounding to bfloat16 and back, against its definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pstrain.kernels import bfloat16
from pstrain.serialization.bfloat16 import round_into, widened
from tests.unit.bfloat16_twin import bits_of, rounded

WIDTHS = [1, 3, 7, 8, 9, 16, 17, 27, 40]
ROWS, START = 40, 1000


def _all_kinds(rows: int, columns: int) -> np.ndarray:
    """Returns floats of random bits without NaN, among them subnormals, zeros and infinities."""
    random = np.random.default_rng(columns)
    values = random.integers(0, 2**32, (rows, columns), dtype=np.uint32).view(np.float32)
    special = np.array([0x0, 0x80000000, 0x7F800000, 0xFF800000, 0x1, 0x8000, 0x18000], np.uint32)
    values.reshape(-1)[: len(special)] = special.view(np.float32)[: values.size]
    return np.where(np.isnan(values), np.float32(1), values)


def _bits(rows: np.ndarray, width: int | None = None) -> np.ndarray:
    out = np.empty((len(rows), width or rows.shape[1]), np.uint16)
    bfloat16.to_bfloat16(rows, out)
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_row_values_are_rounded_to_nearest_without_slots(width: int) -> None:
    slab = _all_kinds(ROWS, width + 5)
    np.testing.assert_array_equal(_bits(slab, width), bits_of(slab[:, :width]))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("slots", [0, 1])
def test_gathered_rows_are_rounded_to_nearest(width: int, slots: int) -> None:
    slab = _all_kinds(ROWS, width * (1 + slots))
    ids = START + np.random.default_rng(1).permutation(ROWS)[:13].astype(np.int64)
    out = np.empty((len(ids), width), np.uint16)
    bfloat16.gather_bfloat16(slab, width, START, ids, out)
    np.testing.assert_array_equal(out, bits_of(slab[ids - START, :width]))


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.uint32, st.tuples(st.integers(0, 3), st.integers(1, 40))))
def test_any_float32_bits_are_rounded_and_nan_stays_nan(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    out = np.empty(values.shape, np.uint16)
    round_into(out, values)
    back = widened(out)
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(np.isnan(back), is_nan)
    np.testing.assert_array_equal(np.signbit(back), np.signbit(values))
    np.testing.assert_array_equal(back[~is_nan], rounded(values[~is_nan]))


def test_every_bfloat16_value_survives_widening_and_rounding() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 16)
    values = widened(halves)
    np.testing.assert_array_equal(values.view(np.uint32) >> 16, halves)
    again, is_nan = _bits(values), np.isnan(values)
    np.testing.assert_array_equal(again[~is_nan], halves[~is_nan])
    # A signalling NaN becomes a quiet one.
    np.testing.assert_array_equal(again[is_nan], halves[is_nan] | 0x0040)


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (1.00390625, 0x3F80),  # a tie, rounded to even: down
        (1.01171875, 0x3F82),  # a tie, rounded to even: up
        (-1.0039065, 0xBF81),
        (3.3961775e38, 0x7F80),  # a tie of the largest number and infinity
        (3.3895313e38, 0x7F7F),
        (1e-45, 0x0000),
        (9.2e-41, 0x0001),
    ],
)
def test_ties_overflow_and_subnormals_are_rounded_correctly(value: float, bits: int) -> None:
    assert _bits(np.full((1, 17), value, np.float32)).tolist() == [[bits] * 17]
