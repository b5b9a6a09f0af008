"""Binary cross-entropy from logits, with its gradient, and probabilities from logits.

Invariant: no logit, however large, overflows; sums are taken in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def sigmoid(logits: Array, out: Array) -> None:
    """out[i] = 1 / (1 + exp(-logits[i]))."""
    for i in range(len(logits)):
        decay = math.exp(-abs(logits[i]))
        out[i] = (1.0 if logits[i] >= 0 else decay) / (1.0 + decay)


@njit(nogil=True, cache=True)
def cross_entropy(logits: Array, labels: Array, weights: Array, gradient: Array) -> float:
    """Returns the mean of log(1 + exp(-z)) for labels 1 and log(1 + exp(z)) for labels 0.

    Each loss is multiplied by its weight, by 1 if ``weights`` is empty, before the sum is divided
    by their number. Sets ``gradient`` to d mean / d logits.
    """
    total = 0.0
    scale = 1.0 / max(len(logits), 1)
    for i in range(len(logits)):
        weight = np.float64(weights[i]) if len(weights) else 1.0
        z = np.float64(logits[i])
        decay = math.exp(-abs(z))
        total += weight * (max(z, 0.0) - z * labels[i] + math.log1p(decay))
        probability = (1.0 if z >= 0 else decay) / (1.0 + decay)
        gradient[i] = weight * (probability - labels[i]) * scale
    return total * scale


@njit(nogil=True, cache=True)
def log_losses(labels: Array, probabilities: Array, epsilon: float, out: Array) -> int:
    """out[i] = minus the log of the probability given to the label, clipped at ``epsilon``.

    Returns how many probabilities were outside [0, 1] or NaN.
    """
    outside = 0
    for i in range(len(labels)):
        given = np.float64(probabilities[i])
        outside += not (0.0 <= given <= 1.0)
        p = min(max(given, epsilon), 1.0 - epsilon)
        # Logarithms take most of the time, and a label of 0 or 1 needs only one of them.
        if labels[i] == 1.0:
            out[i] = -math.log(p)
        elif labels[i] == 0.0:
            out[i] = -math.log1p(-p)
        else:
            out[i] = -(labels[i] * math.log(p) + (1.0 - labels[i]) * math.log1p(-p))
    return outside


def warm_up() -> None:
    """Compiles for float32 logits, labels and probabilities."""
    values, each = np.zeros(1, dtype=np.float32), np.zeros(1, dtype=np.float64)
    sigmoid(values, values)
    cross_entropy(values, values, values, values)
    log_losses(values, values, 1e-7, each)
