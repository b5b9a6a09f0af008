"""Initializers: the initial values of variables, wherever their rows live."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import InitializerSpec

pytestmark = pytest.mark.usefixtures("own_parameters")


def _values(spec: InitializerSpec, *shape: int) -> np.ndarray:
    return create_variable(spec, shape=shape, name="x").numpy()


def test_constant_initializers_fill_with_their_value() -> None:
    assert (_values(initializers.zeros(), 3) == 0).all()
    assert (_values(initializers.ones(), 3) == 1).all()
    assert (_values(initializers.constant(0.5), 2, 2) == 0.5).all()


def test_uniform_values_fill_their_interval() -> None:
    values = _values(initializers.uniform(-1, 3), 2000, 2)
    assert values.min() >= -1
    assert values.max() < 3
    assert values.mean() == pytest.approx(1.0, abs=0.1)
    assert values.std() == pytest.approx(4 / math.sqrt(12), rel=0.05)


def test_glorot_uniform_limit_follows_fan_in_and_fan_out() -> None:
    values = _values(initializers.glorot_uniform(40, 20), 40, 20)
    limit = math.sqrt(6 / 60)
    assert 0.9 * limit < np.abs(values).max() <= limit


def test_normal_values_have_given_moments_and_truncation_bounds_them() -> None:
    values = _values(initializers.normal(1.0, 2.0), 4000)
    assert (values.mean(), values.std()) == pytest.approx((1.0, 2.0), rel=0.1)
    cut = _values(initializers.truncated_normal(1.0, 2.0), 4000)
    assert np.abs(cut - 1.0).max() <= 4.0 + 1e-5
    assert np.abs(values - 1.0).max() > 4.0


@pytest.mark.parametrize("make", [initializers.uniform, initializers.normal])
def test_zero_columns_initializes_leading_columns_to_zero(make: object) -> None:
    values = _values(make(zero_columns=2), 10, 4)  # type: ignore[operator]
    assert not values[:, :2].any()
    assert values[:, 2:].all()


def test_empty_interval_and_negative_stddev_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"low=1 and high=0\.05"):
        initializers.uniform(1)
    for make in (initializers.normal, initializers.truncated_normal):
        with pytest.raises(InvalidArgumentError, match="stddev must not be negative, got -1"):
            make(stddev=-1)


def test_seeds_differ_by_variable_name_and_are_reproducible() -> None:
    seeds = {initializers.seed_for(name, seed) for name in "abc" for seed in range(5)}
    assert len(seeds) == 15
    same = initializers.uniform(seed=initializers.seed_for("a"))
    other = initializers.uniform(seed=initializers.seed_for("b"))
    np.testing.assert_array_equal(_values(same, 5), _values(same, 5))
    assert (_values(same, 5) != _values(other, 5)).any()


@pytest.mark.parametrize("seed", ["x", 1.5, None, True])
def test_seeds_that_are_not_integers_are_refused(seed: Any) -> None:
    makes: list[Any] = [
        initializers.uniform,
        initializers.normal,
        initializers.truncated_normal,
        lambda seed: initializers.seed_for("x", seed),
    ]
    for make in makes:
        with pytest.raises(InvalidTypeError, match=r"seed must be an integer, got .*; it is 0"):
            make(seed=seed)
    assert initializers.normal(seed=np.int64(3)) == initializers.normal(seed=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("per_worker", [False, True])
def test_float_initial_values_for_integer_variables_are_refused(per_worker: bool) -> None:
    def made(initial: Any, dtype: str) -> Any:
        return Variable(initial((2,), dtype), name="x", per_worker_variable=per_worker)

    for initial in (initializers.normal(), initializers.uniform()):
        with pytest.raises(
            InvalidArgumentError, match=r"'x' of int64 cannot hold what initializers"
        ):
            made(initial, "int64")
    for dtype, value in (("int64", 2.5), ("int8", 300), ("uint8", -1), ("bool", 2)):
        with pytest.raises(InvalidArgumentError, match=f"cannot become {dtype} without loss"):
            made(initializers.constant(value), dtype)
    assert made(initializers.ones(), "bool").dtype == "bool"
    assert made(initializers.constant(300), "int16").dtype == "int16"


def test_initializer_without_shape_is_refused_naming_variable() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^a variable needs shape= with"):
        Variable(initializers.ones())
    with pytest.raises(InvalidArgumentError, match=r"^variable 'v' needs shape= with"):
        Variable(initializers.ones(), name="v")
