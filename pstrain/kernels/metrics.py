"""The counts of metrics: exact sums of floats, histograms of probabilities, confusion matrices.

Knows no model. Invariant: every state is int64 and is merged by integer addition, so that the
result does not depend on the order or the grouping in which examples arrive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

LIMBS = 72
LIMB_BITS = 32
LOWEST_BIT = -1152
_MASK = (1 << LIMB_BITS) - 1


@njit(nogil=True, cache=True)
def add_exactly(values: Array, limbs: Array) -> int:
    """Adds float64 values to a fixed-point number of ``LIMBS`` int64 limbs; skips non-finite ones.

    Limb k counts units of 2^(LOWEST_BIT + 32 k), which covers all of float64. Carries are
    resolved at the end, so a limb stays below 2^32 in size and 2^31 such states can be added.
    Returns how many values were not finite.
    """
    skipped = 0
    for i in range(len(values)):
        value = np.float64(values[i])
        if not math.isfinite(value):
            skipped += 1
            continue
        fraction, exponent = math.frexp(value)
        mantissa = np.int64(fraction * 9007199254740992.0)
        position = exponent - 53 - LOWEST_BIT
        limb, shift = position // LIMB_BITS, position % LIMB_BITS
        sign = 1 if mantissa >= 0 else -1
        low = (abs(mantissa) & _MASK) << shift
        high = (abs(mantissa) >> LIMB_BITS) << shift
        limbs[limb] += sign * (low & _MASK)
        limbs[limb + 1] += sign * ((low >> LIMB_BITS) + (high & _MASK))
        limbs[limb + 2] += sign * (high >> LIMB_BITS)
    for k in range(LIMBS - 1):
        carry = limbs[k] >> LIMB_BITS
        limbs[k] -= carry << LIMB_BITS
        limbs[k + 1] += carry
    return skipped


@njit(nogil=True, cache=True)
def add_weight(weights: Array, row: int, total: Array) -> None:
    """Adds weights[row], or 1 if there are no weights, to an int64 pair: units of 2^-8 and 2^-40.

    Weights are rounded to 2^-40 and must be less than 2^23. The second number of the pair stays
    below 2^32, so 2^31 such pairs can be added.
    """
    if len(weights) == 0:
        total[0] += 1 << 8
        return
    units = np.int64(np.rint(weights[row] * 1099511627776.0))
    low = total[1] + (units & _MASK)
    total[0] += (units >> LIMB_BITS) + (low >> LIMB_BITS)
    total[1] = low & _MASK


@njit(nogil=True, cache=True)
def count_by_probability(
    labels: Array, probabilities: Array, weights: Array, histogram: Array
) -> int:
    """Adds each example's weight to histogram[bin of its probability, label]; int64 [bins, 2, 2].

    Returns how many probabilities were outside [0, 1] or NaN; those are not counted.
    """
    bins = histogram.shape[0]
    skipped = 0
    for i in range(len(labels)):
        p = np.float64(probabilities[i])
        if not (0.0 <= p <= 1.0):
            skipped += 1
            continue
        column = 1 if labels[i] > 0.5 else 0
        add_weight(weights, i, histogram[min(int(p * bins), bins - 1), column])
    return skipped


@njit(nogil=True, cache=True)
def weight_of(total: Array) -> float:
    """Returns the value of a pair of ``add_weight``, in whatever order its parts were added."""
    return (total[0] + (total[1] >> LIMB_BITS)) / 256.0 + (total[1] & _MASK) / 1099511627776.0


@njit(nogil=True, cache=True)
def area_under_curve(histogram: Array) -> float:
    """Integrates what ``count_by_probability`` counts by trapezoids; NaN if a label is absent."""
    area, above, negatives = 0.0, 0.0, 0.0
    for row in range(histogram.shape[0] - 1, -1, -1):
        negative, positive = weight_of(histogram[row, 0]), weight_of(histogram[row, 1])
        area += negative * (2.0 * above + positive)
        above += positive
        negatives += negative
    total = 2.0 * negatives * above
    return area / total if total != 0.0 else math.nan


@njit(nogil=True, cache=True)
def count_confusion(
    labels: Array, probabilities: Array, weights: Array, threshold: float, counts: Array
) -> int:
    """Adds each example's weight to counts[label, probability > threshold]; int64 [2, 2, 2].

    Returns how many probabilities were outside [0, 1] or NaN; those are not counted.
    """
    skipped = 0
    for i in range(len(labels)):
        if not (0.0 <= probabilities[i] <= 1.0):
            skipped += 1
            continue
        prediction = 1 if probabilities[i] > threshold else 0
        add_weight(weights, i, counts[1 if labels[i] > 0.5 else 0, prediction])
    return skipped


def warm_up() -> None:
    """Compiles for float32 labels and probabilities and float64 values and weights."""
    values, labels = np.zeros(1, dtype=np.float64), np.zeros(1, dtype=np.float32)
    add_exactly(values, np.zeros(LIMBS, dtype=np.int64))
    add_weight(values, 0, np.zeros(2, dtype=np.int64))
    counts = np.zeros((2, 2, 2), dtype=np.int64)
    weight_of(counts[0, 0])
    count_by_probability(labels, labels, values, counts)
    area_under_curve(counts)
    count_confusion(labels, labels, values, 0.5, counts)
