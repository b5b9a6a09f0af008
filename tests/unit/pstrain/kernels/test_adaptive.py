"""Update rules of rows against NumPy: what they change, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pstrain.kernels import adaptive

ROWS, START = 40, 1000
Array = np.ndarray[Any, Any]


def _momentum(v: Array, s: list[Array], _r: Array, g: Array, h: Array) -> None:
    step = h[0] * (g + h[1] * v)
    s[0][...] = h[2] * s[0] - step
    v += h[2] * s[0] - step if h[3] else s[0]


def _rmsprop(v: Array, s: list[Array], _r: Array, g: Array, h: Array) -> None:
    g = g + h[1] * v
    s[0][...] = h[2] * s[0] + (1 - h[2]) * g * g
    step = h[0] * g / np.sqrt(s[0] + h[3])
    if len(s) == 2:
        s[1][...] = step = h[4] * s[1] + step
    v -= step


def _adam(v: Array, s: list[Array], r: Array, g: Array, h: Array) -> None:
    g = g + h[1] * v
    r += 1
    s[0][...] = h[2] * s[0] + (1 - h[2]) * g
    s[1][...] = h[3] * s[1] + (1 - h[3]) * g * g
    first, second = s[0] / (1 - h[2] ** r), s[1] / (1 - h[3] ** r)
    v -= h[0] * first / (np.sqrt(second) + h[4] / np.sqrt(1 - h[3] ** r))


def _ftrl(v: Array, s: list[Array], _r: Array, g: Array, h: Array) -> None:
    new = s[0] + g * g
    change = (new ** -h[2] - s[0] ** -h[2]) / h[0]
    s[1] += g + 2 * h[5] * v - change * v
    s[0][...] = new
    quadratic = new ** -h[2] / h[0] + 2 * (h[4] + h[6] / (2 * h[0]))
    v[...] = (np.clip(s[1], -h[3], h[3]) - s[1]) / quadratic


def _rowwise(v: Array, _s: list[Array], r: Array, g: Array, h: Array) -> None:
    g = g + h[1] * v
    r += np.mean(g * g, axis=1, keepdims=True)
    v -= h[0] * g / (np.sqrt(r) + h[2])


Reference = Callable[[Array, list[Array], Array, Array, Array], None]
CASES: list[tuple[Any, Reference, int, int, list[float]]] = [
    (adaptive.momentum_rows, _momentum, 1, 0, [0.1, 0.01, 0.9, 0]),
    (adaptive.momentum_rows, _momentum, 1, 0, [0.1, 0.01, 0.9, 1]),
    (adaptive.rmsprop_rows, _rmsprop, 1, 0, [0.1, 0.01, 0.9, 1e-3]),
    (adaptive.rmsprop_momentum_rows, _rmsprop, 2, 0, [0.1, 0.01, 0.9, 1e-3, 0.8]),
    (adaptive.adam_rows, _adam, 2, 1, [0.1, 0.01, 0.9, 0.99, 1e-4]),
    (adaptive.ftrl_rows, _ftrl, 2, 0, [0.1, 0, -0.5, 0.05, 0.1, 0.01, 0.2]),
    (adaptive.ftrl_rows, _ftrl, 2, 0, [0.1, 0, -0.3, 0.05, 0.1, 0.01, 0.2]),
    (adaptive.rowwise_adagrad_rows, _rowwise, 0, 1, [0.1, 0.01, 1e-4]),
]


@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_update_rule_agrees_with_numpy_and_changes_given_rows_only(case: int, width: int) -> None:
    kernel, twin, slots, row_slots, numbers = CASES[case]
    random = np.random.default_rng(case)
    columns = width * (1 + slots) + row_slots
    slab = random.uniform(0.1, 1.0, (ROWS, columns)).astype(np.float32)
    slab[:, width * (1 + slots) :] = 3
    ids = START + random.permutation(ROWS)[:13].astype(np.int64)
    expected = slab.astype(np.float64)
    for _ in range(3):
        gradients = random.normal(size=(len(ids), width)).astype(np.float32)
        rows = expected[ids - START]
        parts = [rows[:, k * width : (k + 1) * width] for k in range(1 + slots)]
        twin(parts[0], parts[1:], rows[:, (1 + slots) * width :], gradients, np.array(numbers))
        expected[ids - START] = rows
        for array in (ids, gradients):
            array.flags.writeable = False
        kernel(slab, width, START, ids, gradients, np.array(numbers, np.float32))
    np.testing.assert_allclose(slab, expected, rtol=2e-4, atol=2e-5)
    untouched = np.setdiff1d(np.arange(ROWS), ids - START)
    np.testing.assert_array_equal(slab[untouched], expected[untouched].astype(np.float32))
