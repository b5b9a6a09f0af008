"""Optimizers and schedules against the numbers that Keras 3.12 and PyTorch 2.13 gave.

Each reference was made by four steps from VALUE along GRADIENTS with the arguments named here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pstrain import optimizers as opt
from pstrain.optimizers import schedules
from pstrain.variables.variable import Variable

pytestmark = pytest.mark.usefixtures("own_parameters")

VALUE = np.array([0.126, -0.132, 0.64, 0.105], np.float32)
GRADIENTS = np.array(
    [
        [-0.536, 0.362, 1.304, 0.947],
        [-0.704, -1.265, -0.623, 0.041],
        [-2.325, -0.219, -1.246, -0.732],
        [-0.544, -0.316, 0.412, 1.043],
    ],
    np.float32,
)
KERAS: dict[str, tuple[Callable[[], opt.Optimizer], list[float]]] = {
    "momentum": (
        lambda: opt.Momentum(0.1),
        [0.99726439, 0.15953320, 0.55592746, -0.19700432],
    ),
    "nesterov": (
        lambda: opt.Momentum(0.1, nesterov=True),
        [1.32103801, 0.27417988, 0.57963473, -0.29670388],
    ),
    "adagrad": (
        lambda: opt.Adagrad(0.1),
        [0.40096527, -0.07539458, 0.62851560, 0.00073072],
    ),
    "rmsprop": (
        lambda: opt.RMSprop(0.1),
        [1.06824958, -0.00753534, 0.60984790, -0.24083720],
    ),
    "rmsprop with momentum": (
        lambda: opt.RMSprop(0.1, momentum=0.8),
        [2.29312372, -0.14147040, 0.37146086, -0.71414435],
    ),
    "adam": (
        lambda: opt.Adam(0.1),
        [0.49506548, -0.07382968, 0.54462487, -0.10956372],
    ),
    "ftrl": (
        lambda: opt.Ftrl(0.1),
        [0.33694038, 0.01144676, 0.47768363, -0.03252631],
    ),
    "ftrl, regularised": (
        lambda: opt.Ftrl(
            0.1,
            l1_regularization_strength=0.05,
            l2_regularization_strength=0.1,
            l2_shrinkage_regularization_strength=0.01,
            beta=0.2,
        ),
        [0.26818126, 0.03220085, 0.40737855, -0.02628693],
    ),
    "adam with clipnorm": (
        lambda: opt.Adam(0.1, clipnorm=1.0),
        [0.51493174, -0.07360862, 0.52074099, -0.14315750],
    ),
    "sgd with clipvalue": (
        lambda: opt.SGD(0.1, clipvalue=0.3),
        [0.24600001, -0.08010000, 0.63999999, 0.07089999],
    ),
}
TABLE = np.array([[0.5, -1.0, 0.25], [2.0, 0.0, -0.5]], np.float32)
TABLE_GRADIENTS = np.array(
    [[[1.0, -2.0, 0.5], [0.1, 0.2, 0.3]], [[0.5, 0.5, -1.0], [0.0, 1.0, 0.0]]], np.float32
)
STEPS = (0, 3, 5, 7, 10, 12, 25)


@pytest.mark.parametrize("name", KERAS)
def test_optimizer_values_equal_keras(name: str) -> None:
    make, expected = KERAS[name]
    variable, optimizer = Variable(VALUE, name="x"), make()
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: opt.SGD(0.1, l2=0.2),
            [[0.33219999, -0.81439996, 0.29110000], [1.91100001, -0.11960001, -0.50959998]],
        ),
        (
            lambda: opt.Momentum(0.1, l2=0.2),
            [[0.23319997, -0.61639994, 0.24159999], [1.86600006, -0.13760000, -0.52759999]],
        ),
    ],
)
def test_l2_equals_torch_weight_decay(
    make: Callable[[], opt.Optimizer], expected: list[list[float]]
) -> None:
    variable, optimizer = Variable(TABLE, name="t"), make()
    for gradient in TABLE_GRADIENTS:
        optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            schedules.ExponentialDecay(0.1, 10, 0.5),
            [0.1, 0.08122524, 0.07071068, 0.06155722, 0.05, 0.04352752, 0.01767767],
        ),
        (
            schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True),
            [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.025],
        ),
        (
            schedules.InverseTimeDecay(0.1, 10, 0.5),
            [0.1, 0.08695652, 0.08, 0.07407407, 0.06666667, 0.0625, 0.04444445],
        ),
        (
            schedules.InverseTimeDecay(0.1, 10, 0.5, staircase=True),
            [0.1, 0.1, 0.1, 0.1, 0.06666667, 0.06666667, 0.05],
        ),
        (
            schedules.PolynomialDecay(0.1, 10, 0.01, power=2.0),
            [0.1, 0.0541, 0.0325, 0.0181, 0.01, 0.01, 0.01],
        ),
        (
            schedules.PolynomialDecay(0.1, 10, 0.01, cycle=True),
            [0.1, 0.073, 0.055, 0.037, 0.01, 0.046, 0.025],
        ),
        (
            schedules.CosineDecay(0.1, 10, alpha=0.1),
            [0.1, 0.08145034, 0.055, 0.02854967, 0.01, 0.01, 0.01],
        ),
        (
            schedules.CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=5),
            [0.0, 0.06, 0.1, 0.09045085, 0.05, 0.02061074, 0.0],
        ),
        (
            schedules.CosineDecay(0.05, 10, warmup_target=0.1, warmup_steps=5),
            [0.05, 0.08, 0.1, 0.09045085, 0.05, 0.02061074, 0.0],
        ),
        (
            schedules.PiecewiseConstantDecay([5, 10], [0.1, 0.05, 0.01]),
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.01, 0.01],
        ),
    ],
)
def test_schedule_rates_equal_keras(
    schedule: schedules.LearningRateSchedule, expected: list[float]
) -> None:
    np.testing.assert_allclose([schedule(step) for step in STEPS], expected, rtol=1e-5, atol=1e-9)
    assert schedules.from_config(schedule.get_config()) == schedule


@pytest.mark.parametrize(
    ("t_mul", "m_mul", "alpha"), [(2.0, 1.0, 0.0), (1.0, 0.5, 0.1), (3.0, 0.9, 0)]
)
def test_cosine_decay_restarts_follows_its_formula(
    t_mul: float, m_mul: float, alpha: float
) -> None:
    schedule = schedules.CosineDecayRestarts(0.1, 7, t_mul, m_mul, alpha)
    expected = []
    for restart in range(4):
        length = round(7 * t_mul**restart)
        turns = np.cos(np.pi * np.arange(length) / length)
        expected += list(0.1 * ((1 - alpha) * m_mul**restart * (1 + turns) / 2 + alpha))
    found = [schedule(step) for step in range(len(expected))]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert schedules.from_config(schedule.get_config()) == schedule
