"""Losses of regression from outputs and labels, each with its gradient.

Invariant: differences, losses and sums are taken in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def squared_errors(outputs: Array, labels: Array, weights: Array, gradient: Array) -> float:
    """Returns the mean of (output - label)^2.

    Each loss is multiplied by its weight, by 1 if ``weights`` is empty, before the sum is divided
    by their number. Sets ``gradient`` to d mean / d outputs.
    """
    total = 0.0
    scale = 1.0 / max(len(outputs), 1)
    for i in range(len(outputs)):
        weight = np.float64(weights[i]) if len(weights) else 1.0
        error = np.float64(outputs[i]) - np.float64(labels[i])
        total += weight * error * error
        gradient[i] = 2.0 * weight * error * scale
    return total * scale


@njit(nogil=True, cache=True)
def absolute_errors(outputs: Array, labels: Array, weights: Array, gradient: Array) -> float:
    """Returns the mean of |output - label|, whose slope is 0 where they are equal.

    ``weights`` and ``gradient`` are as for :func:`squared_errors`.
    """
    total = 0.0
    scale = 1.0 / max(len(outputs), 1)
    for i in range(len(outputs)):
        weight = np.float64(weights[i]) if len(weights) else 1.0
        error = np.float64(outputs[i]) - np.float64(labels[i])
        total += weight * abs(error)
        # The sign of NaN is NaN, so that training which has diverged shows.
        gradient[i] = weight * np.sign(error) * scale
    return total * scale


@njit(nogil=True, cache=True)
def huber_errors(
    outputs: Array, labels: Array, weights: Array, gradient: Array, delta: float
) -> float:
    """Returns the mean of e^2 / 2 for |e| up to ``delta``, and of delta * (|e| - delta / 2) beyond.

    e is output - label; ``weights`` and ``gradient`` are as for :func:`squared_errors`.
    """
    total = 0.0
    scale = 1.0 / max(len(outputs), 1)
    for i in range(len(outputs)):
        weight = np.float64(weights[i]) if len(weights) else 1.0
        error = np.float64(outputs[i]) - np.float64(labels[i])
        if abs(error) > delta:
            total += weight * delta * (abs(error) - 0.5 * delta)
            gradient[i] = weight * delta * np.sign(error) * scale
        else:
            total += weight * 0.5 * error * error
            gradient[i] = weight * error * scale
    return total * scale


def warm_up() -> None:
    """Compiles for float32 outputs, labels and weights."""
    values = np.zeros(1, dtype=np.float32)
    squared_errors(values, values, values, values)
    absolute_errors(values, values, values, values)
    huber_errors(values, values, values, values, 1.0)
