"""The definition of bfloat16 in NumPy: the nearest float32 whose lower 16 bits are 0."""

from __future__ import annotations

import numpy as np


def bits_of(values: np.ndarray) -> np.ndarray:
    """Returns the bits (uint16) of float32 values that are not NaN; ties round to even."""
    exact = np.ascontiguousarray(values, np.float32)
    below = (exact.view(np.uint32) >> 16).astype(np.int64)
    # One step above the largest number is infinity, which counts as 2 ** 128; nothing is above it.
    candidates = np.stack([below, below + np.isfinite(exact)])
    sizes = (candidates.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    sizes = np.where(np.isinf(sizes), np.copysign(2.0**128, sizes), sizes)
    down, up = np.abs(sizes - np.clip(exact.astype(np.float64), -(2.0**128), 2.0**128))
    is_up = (up < down) | ((up == down) & (below % 2 == 1))
    return np.where(is_up, *candidates[::-1]).astype(np.uint16)


def rounded(values: np.ndarray) -> np.ndarray:
    """Returns float32 values rounded to bfloat16 and widened to float32 again."""
    return (bits_of(values).astype(np.uint32) << 16).view(np.float32)
