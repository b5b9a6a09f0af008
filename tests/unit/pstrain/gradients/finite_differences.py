"""Gradients of a tape, checked against central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pstrain.gradients.recording import record
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor


def weighted_sum(tensor: Tensor) -> Tensor:
    """Returns a scalar in which every output has a different weight."""
    weights = np.sin(1 + np.arange(tensor.value.size)).astype(np.float32).reshape(tensor.shape)
    total = np.sum(tensor.value * weights, dtype=np.float64)
    return record(Tensor(total), (tensor,), lambda grad: (weights * grad).astype(np.float32))


def numeric_gradient(variable: Any, loss: Callable[[], Any], step: float = 1e-2) -> np.ndarray:
    """Computes the gradient of ``loss`` by ``variable`` from central differences.

    Where the loss is piecewise linear, a large ``step`` costs no accuracy.
    """
    start = variable.numpy()
    found = np.zeros_like(start)
    for index in np.ndindex(*start.shape):
        values = []
        for sign in (1, -1):
            moved = start.copy()
            moved[index] += sign * step
            variable.assign(moved)
            values.append(float(loss()))
        found[index] = (values[0] - values[1]) / (2 * step)
    variable.assign(start)
    return found


def check_gradients(
    variables: Sequence[Any], loss: Callable[[], Tensor], *, step: float = 1e-2, rtol: float = 2e-3
) -> None:
    """Fails if the gradients of a tape differ from those by central differences."""
    with GradientTape() as tape:
        total = loss()
    gradients = tape.gradients(total)
    for variable in variables:
        update = gradients.of(variable)
        full = np.zeros(variable.shape, np.float32)
        full[... if update.lookup is None else update.lookup.unique] = update.gradient
        expected = numeric_gradient(variable, loss, step)
        np.testing.assert_allclose(full, expected, rtol=rtol, atol=2e-3, err_msg=variable.name)
