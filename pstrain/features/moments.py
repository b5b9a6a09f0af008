"""Mean and standard deviation of numbers that arrive in batches.

Knows nothing of columns. Invariant: no large squares are subtracted from each other, however far
from 0 the numbers are, so precision is kept (Chan, Golub and LeVeque, 1979).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Running mean and deviation over batches; without any number the mean is 0."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._count, self._squares = 0, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds numbers, which must be finite."""
        if not len(values):
            return
        count = self._count + len(values)
        # Differences of equal numbers are exactly 0, so rounding does not count as a deviation.
        near = values - values[0]
        mean = float(values[0] + near.mean())
        gap = mean - self.mean
        self._squares += float(np.square(near - near.mean()).sum())
        self._squares += gap * gap * self._count * len(values) / count
        self.mean += gap * len(values) / count
        self._count = count

    def deviation(self) -> float:
        """Returns the standard deviation; 1 if numbers are (nearly) equal or there are none."""
        found = math.sqrt(self._squares / max(self._count, 1))
        return found if found >= 1e-12 else 1.0
