"""The parts of a dense layer around its matrix products: bias, activations and their gradients.

Invariant: float32 in, float32 out; matrices are row-major [n, units].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]


@njit(nogil=True, cache=True)
def add_bias(values: Array, bias: Array) -> None:
    """values[i, j] += bias[j], in place."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[i, j] += bias[j]


@njit(nogil=True, cache=True)
def add_bias_relu(values: Array, bias: Array) -> None:
    """values[i, j] = max(values[i, j] + bias[j], 0), in place. NaN stays NaN."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j] + bias[j]
            values[i, j] = np.float32(0) if value < 0 else value


@njit(nogil=True, cache=True)
def relu_gradient(gradient: Array, activation: Array, out: Array, bias_gradient: Array) -> None:
    """out = gradient where activation > 0, else 0; adds out's column sums to bias_gradient."""
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            value = gradient[i, j] if activation[i, j] > 0 else np.float32(0)
            out[i, j] = value
            bias_gradient[j] += value


@njit(nogil=True, cache=True)
def sigmoid_gradient(gradient: Array, activation: Array, out: Array, bias_gradient: Array) -> None:
    """out = gradient * a * (1 - a) for activation a; adds out's column sums to bias_gradient."""
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            a = activation[i, j]
            value = gradient[i, j] * a * (np.float32(1) - a)
            out[i, j] = value
            bias_gradient[j] += value


@njit(nogil=True, cache=True)
def column_sums(values: Array, out: Array) -> None:
    """Adds values[i, j] over i to out[j]."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[j] += values[i, j]


@njit(nogil=True, cache=True)
def outer_product(column: Array, row: Array, out: Array) -> None:
    """out[i, j] = column[i] * row[j]; NumPy would start its inner loop anew for each short row."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = column[i] * row[j]


def warm_up() -> None:
    """Compiles for float32 matrices, and for biases that are writable, or shared and read-only."""
    values, sums = np.zeros((1, 2), dtype=np.float32), np.zeros(2, dtype=np.float32)
    shared = np.zeros(2, dtype=np.float32)
    shared.flags.writeable = False
    for bias in (sums, shared):
        add_bias(values, bias)
        add_bias_relu(values, bias)
        outer_product(sums[:1], bias, values)
    relu_gradient(values, values, values, sums)
    sigmoid_gradient(values, values, values, sums)
    column_sums(values, sums)
