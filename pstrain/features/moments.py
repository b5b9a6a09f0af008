"""Mean and standard deviation of numbers that come in batches.

Knows nothing of columns. Invariant: however far from 0 the numbers lie, no large squares cancel
each other out (Chan, Golub and LeVeque, 1979).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Adds up over batches; without any number the mean is 0."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._count, self._squares = 0, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Counts finite numbers."""
        if not len(values):
            return
        count = self._count + len(values)
        # Of numbers that are all the same nothing is left, so that no rounding is a deviation.
        near = values - values[0]
        mean = float(values[0] + near.mean())
        gap = mean - self.mean
        self._squares += float(np.square(near - near.mean()).sum())
        self._squares += gap * gap * self._count * len(values) / count
        self.mean += gap * len(values) / count
        self._count = count

    def deviation(self) -> float:
        """1 where all numbers are the same, or nearly, or there is none."""
        found = math.sqrt(self._squares / max(self._count, 1))
        return found if found >= 1e-12 else 1.0
