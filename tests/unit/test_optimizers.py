"""Optimizers: their arithmetic against NumPy, pairs of gradients, refusals, configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from pstrain import optimizers
from pstrain.errors import InvalidArgumentError
from pstrain.layers import Embedding
from pstrain.optimizers import SGD, Adagrad
from pstrain.tape import GradientTape, Tensor, record
from pstrain.variable import Variable, local_parameters

GRADIENT = np.array([0.5, -2.0, 0.0], dtype=np.float32)


@pytest.fixture(autouse=True)
def _own_parameters() -> Iterator[None]:
    with local_parameters():
        yield


def test_sgd_takes_steps_against_the_gradient() -> None:
    variable, optimizer = Variable(np.zeros(3, np.float32), name="x"), SGD(0.1)
    for _ in range(2):
        optimizer.apply_gradients([(GRADIENT, variable)])
    np.testing.assert_allclose(variable.numpy(), -0.2 * GRADIENT, rtol=1e-6)
    assert int(optimizer.iterations) == 2


def test_adagrad_shrinks_its_steps() -> None:
    variable, optimizer = Variable(np.zeros(3, np.float32), name="x"), Adagrad(0.1)
    value, accumulator = np.zeros(3), np.full(3, 0.1)
    for _ in range(3):
        optimizer.apply_gradients([(GRADIENT, variable)])
        accumulator += GRADIENT.astype(np.float64) ** 2
        value -= 0.1 * GRADIENT / np.sqrt(accumulator + 1e-7)
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5)


def test_only_looked_up_rows_change() -> None:
    layer, optimizer = Embedding(5, 2), Adagrad(0.5)
    before = layer.variables[0].numpy()
    with GradientTape() as tape:
        rows = layer(np.array([1, 3, 1]))
        loss = record(Tensor(rows.value.sum()), (rows,), lambda g: np.full(rows.shape, g))
    gradients = tape.gradients(loss)
    optimizer.apply_gradients([(gradients.of(layer.variables[0]), layer.variables[0])])
    moved = before - layer.variables[0].numpy()
    expected = np.zeros((5, 2))
    expected[1], expected[3] = 0.5 * 2 / np.sqrt(4.1), 0.5 / np.sqrt(1.1)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)


def test_pairs_without_a_gradient_are_left_out() -> None:
    first, second = Variable(np.zeros(3, np.float32), name="a"), Variable(np.zeros(1, np.float32))
    SGD(1.0).apply_gradients([(GRADIENT, first), (None, second)])
    np.testing.assert_array_equal(first.numpy(), -GRADIENT)
    with pytest.raises(InvalidArgumentError, match="no gradients"):
        SGD(1.0).apply_gradients([(None, second)])


def test_a_gradient_of_another_shape_is_refused() -> None:
    variable = Variable(np.zeros(3, np.float32), name="x")
    with pytest.raises(
        InvalidArgumentError, match=r"shape \(2,\) for variable 'x' of shape \(3,\)"
    ):
        SGD().apply_gradients([(np.zeros(2), variable)])


def test_an_optimizer_and_variables_of_two_places_are_refused() -> None:
    optimizer = SGD()
    with local_parameters():
        variable = Variable(np.zeros(3, np.float32), name="elsewhere")
    with pytest.raises(InvalidArgumentError, match=r"elsewhere.*strategy\.scope"):
        optimizer.apply_gradients([(GRADIENT, variable)])
    here = Variable(np.zeros(3, np.float32), name="here")
    with pytest.raises(InvalidArgumentError, match="'elsewhere' lives elsewhere"):
        optimizer.apply_gradients([(GRADIENT, here), (GRADIENT, variable)])


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgumentError, match="learning_rate must be"):
        SGD(rate)
    with pytest.raises(InvalidArgumentError, match="epsilon must be"):
        Adagrad(epsilon=rate)


@pytest.mark.parametrize("make", [lambda: SGD(0.25), lambda: Adagrad(0.5, 0.2, 1e-3)])
def test_configuration_makes_the_same_rule_again(make: object) -> None:
    optimizer = make()  # type: ignore[operator]
    again = optimizers.from_config(json.loads(json.dumps(optimizer.get_config())))
    assert again.spec == optimizer.spec
    with pytest.raises(InvalidArgumentError, match="unknown optimizer 'adam'"):
        optimizers.from_config({"name": "adam", "learning_rate": 0.1})
