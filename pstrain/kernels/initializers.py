"""Computes initial values of rows as a function of (seed, global row, column) alone.

There is no generator state, so a variable has the same values on one server or on ten, whole or cut
into shards. The random bits are SplitMix64 (Steele et al. 2014) of a counter; normal values are
made from them by the inverse distribution function (Acklam's rational approximation, relative error
below 1.2e-9).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pstrain.kernels.hashing import GOLDEN, mix64, splitmix64

_TO_UNIT = 1.0 / 9007199254740992.0
_TAIL = 0.02425


@njit(nogil=True, cache=True)
def _unit(row_key: np.uint64, column: int) -> float:
    """Returns a number uniform in (0, 1): 53 random bits, centred so as not to reach either end."""
    bits = mix64(row_key + np.uint64(column + 1) * GOLDEN)
    return (float(bits >> np.uint64(11)) + 0.5) * _TO_UNIT


@njit(nogil=True, cache=True)
def _row_key(seed: np.uint64, row: int) -> np.uint64:
    return mix64(splitmix64(seed) + np.uint64(row) * GOLDEN)


@njit(nogil=True, cache=True)
def _tail(q: float) -> float:
    numerator = -7.784894002430293e-03
    for c in (
        -3.223964580411365e-01,
        -2.400758277161838e00,
        -2.549732539343734e00,
        4.374664141464968e00,
        2.938163982698783e00,
    ):
        numerator = numerator * q + c
    denominator = 7.784695709041462e-03
    for c in (3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0):
        denominator = denominator * q + c
    return numerator / denominator


@njit(nogil=True, cache=True)
def normal_quantile(p: float) -> float:
    """Returns the inverse of the standard normal distribution function, for 0 < p < 1."""
    if p < _TAIL:
        return _tail(np.sqrt(-2.0 * np.log(p)))
    if p > 1.0 - _TAIL:
        return -_tail(np.sqrt(-2.0 * np.log(1.0 - p)))
    q = p - 0.5
    r = q * q
    numerator = -3.969683028665376e01
    for c in (
        2.209460984245205e02,
        -2.759285104469687e02,
        1.383577518672690e02,
        -3.066479806614716e01,
        2.506628277459239e00,
    ):
        numerator = numerator * r + c
    denominator = -5.447609879822406e01
    for c in (
        1.615858368580409e02,
        -1.556989798598866e02,
        6.680131188771972e01,
        -1.328068155288572e01,
        1.0,
    ):
        denominator = denominator * r + c
    return numerator * q / denominator


@njit(nogil=True, cache=True)
def uniform_rows(
    out: NDArray[np.float32],
    width: int,
    seed: int,
    row_start: int,
    rows: NDArray[np.int64],
    low: float,
    high: float,
) -> None:
    """Fills columns ``[0, width)`` of ``out`` with values uniform in [low, high).

    ``out`` has the rows from ``row_start`` on, or, if ``rows`` is not empty, those.
    """
    for index in range(out.shape[0]):
        row = rows[index] if len(rows) else row_start + index
        key = _row_key(np.uint64(seed), row)
        for column in range(width):
            out[index, column] = low + (high - low) * _unit(key, column)


@njit(nogil=True, cache=True)
def normal_rows(
    out: NDArray[np.float32],
    width: int,
    seed: int,
    row_start: int,
    rows: NDArray[np.int64],
    mean: float,
    stddev: float,
    tail: float,
) -> None:
    """Fills columns ``[0, width)`` of ``out`` with normal values; rows as in `uniform_rows`.

    ``tail`` is the probability cut off at each side; 0 does not truncate.
    """
    for index in range(out.shape[0]):
        row = rows[index] if len(rows) else row_start + index
        key = _row_key(np.uint64(seed), row)
        for column in range(width):
            p = tail + (1.0 - 2.0 * tail) * _unit(key, column)
            out[index, column] = mean + stddev * normal_quantile(p)


def warm_up() -> None:
    """Compiles for float32 slabs and read-only row numbers."""
    out, rows = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)
    rows.flags.writeable = False
    uniform_rows(out, 1, 0, 0, rows, 0.0, 1.0)
    normal_rows(out, 1, 0, 0, rows, 0.0, 1.0, 0.0)
