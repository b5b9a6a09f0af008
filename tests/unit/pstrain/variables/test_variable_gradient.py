"""Gradients of variables, as programs compute with them before they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pstrain.errors import InvalidTypeError
from pstrain.gradients.tape import GradientTape
from pstrain.optimizers import SGD
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.variable import Variable

pytestmark = pytest.mark.usefixtures("own_parameters")

WHOLE = np.array([[1, -2], [3, 0.5]], np.float32)


def _variable_and_gradient() -> tuple[Variable, Any]:
    """Returns a variable and its gradient, which is ``WHOLE``."""
    x = Variable(np.zeros((2, 2), np.float32), name="x")
    with GradientTape() as tape:
        loss = np.sum(x * WHOLE)
    return x, tape.gradient(loss, x)  # type: ignore[arg-type]


def _table_and_row_gradient() -> tuple[Variable, Any]:
    """Returns a table and its gradient, which has rows 1 (looked up twice) and 3."""
    table = Variable(np.zeros((5, 2), np.float32), name="table")
    with GradientTape() as tape:
        loss = np.sum(table.embedding_lookup([1, 3, 1]))
    return table, tape.gradient(loss, table)


@pytest.mark.parametrize(
    "compute",
    [
        lambda g: g * 2,
        lambda g: np.float64(2) * g,
        lambda g: g * WHOLE,
        lambda g: WHOLE * g,
        lambda g: g / 2,
        lambda g: 2 / g,
        lambda g: g + g * 3,
        lambda g: 1 - g,
        lambda g: -g,
        lambda g: abs(g) ** 2,
        lambda g: sum([g, g]),
        lambda g: np.clip(g, -1, 1),
        lambda g: np.linalg.norm(g),
    ],
)
def test_gradient_of_whole_variable_acts_as_array_in_operators(
    compute: Callable[[Any], Any],
) -> None:
    _, gradient = _variable_and_gradient()
    found = compute(gradient)
    assert isinstance(found, np.ndarray | np.generic)
    np.testing.assert_array_equal(found, compute(WHOLE))
    np.testing.assert_array_equal(gradient, WHOLE)
    assert (gradient.shape, gradient.dtype) == ((2, 2), np.float32)
    assert gradient.numpy() is not gradient.gradient
    assert gradient.indices.tolist() == [0, 1]


def test_values_computed_from_gradients_can_be_applied() -> None:
    x, of_whole = _variable_and_gradient()
    table, of_rows = _table_and_row_gradient()
    pairs = [(np.clip(of_whole, -1, 1), x), (of_rows * 0.5, table)]
    SGD(1.0).apply_gradients(pairs)
    np.testing.assert_array_equal(x.numpy(), -np.clip(WHOLE, -1, 1))
    expected = np.zeros((5, 2))
    expected[1], expected[3] = -1, -0.5
    np.testing.assert_array_equal(table.numpy(), expected)


def test_row_gradient_can_be_scaled_by_numbers() -> None:
    table, gradient = _table_and_row_gradient()
    for found in (
        gradient * 2,
        2 * gradient,
        np.float64(2) * gradient,
        gradient / 0.5,
        -gradient * -2,
    ):
        assert found.values.tolist() == [[4, 4], [2, 2]]
        assert found.values.dtype == np.float32
    assert (gradient.indices.tolist(), gradient.values.tolist()) == ([1, 3], [[2, 2], [1, 1]])
    clipped = IndexedSlices(np.minimum(gradient.values, 1), gradient.indices)
    SGD(1.0).apply_gradients([(clipped, table)])
    assert table.numpy().sum(axis=1).tolist() == [0, -2, 0, -2, 0]


@pytest.mark.parametrize(
    "compute",
    [np.asarray, lambda g: g + g, lambda g: g * np.ones((5, 2)), lambda g: np.clip(g, 0, 1)],
)
def test_row_gradient_refuses_array_operations(compute: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidTypeError, match=r"'table' is that of 2 of its rows.*IndexedSlices"):
        compute(_table_and_row_gradient()[1])


def test_gradient_repr_names_variable_and_rows() -> None:
    assert repr(_variable_and_gradient()[1]).startswith("<gradient of 'x': array([[ 1. , -2. ]")
    assert repr(_table_and_row_gradient()[1]).startswith(
        "<gradient of 'table' in 2 rows: array([[2., 2.]"
    )


def test_gradient_of_scalar_converts_to_float() -> None:
    x = Variable(3.0)
    with GradientTape() as tape:
        loss = x * x
    assert float(tape.gradient(loss, x)) == 6.0


def test_gradient_accepts_nested_sources_and_refuses_others() -> None:
    x, y = Variable(3.0), Variable(4.0)
    with GradientTape() as tape:
        loss = x * y
    found = tape.gradient(loss, {"x": x, "more": (y, [x])})
    assert float(found["x"]) == float(found["more"][1][0]) == 4.0
    assert float(found["more"][0]) == 3.0
    for wrong in (loss, None, np.ones(2), (v for v in (x, y))):
        with pytest.raises(InvalidTypeError, match="gradients are those of variables, one or a"):
            tape.gradient(loss, wrong)


def test_tensorflow_tape_options_are_refused_with_remedy() -> None:
    with pytest.raises(InvalidTypeError, match="no argument 'watch_accessed_variables': make"):
        GradientTape(watch_accessed_variables=False)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="'watch': trainable variables"):
        GradientTape().watch  # noqa: B018


def test_tape_may_be_told_to_be_persistent() -> None:
    variable = Variable(3.0)
    with GradientTape(persistent=True) as tape:
        loss = variable * variable
    assert [float(tape.gradient(loss, variable)) for _ in range(2)] == [6.0, 6.0]
