"""Derivatives of NumPy's functions against differences of their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from pstrain.errors import UnimplementedError
from pstrain.gradients import derivatives
from pstrain.gradients.tensor import Tensor

Array = np.ndarray[Any, Any]
STEP = 1e-6
BELOW_0 = {np.add, np.subtract, np.multiply, np.divide, np.absolute, np.fabs, np.square, np.cbrt}
BELOW_0 |= {np.exp, np.exp2, np.expm1, np.sin, np.cos, np.tan, np.tanh, np.maximum, np.minimum}


def _differences(compute: Callable[..., Array], inputs: list[Array], place: int) -> Array:
    """Returns finite differences of the weighted sum of ``compute`` by each value of one input."""
    found = np.empty_like(inputs[place])
    for index in np.ndindex(*found.shape):
        sums = []
        for change in (STEP, -STEP):
            moved = [one.copy() for one in inputs]
            moved[place][index] += change
            sums.append(float((compute(*moved) * _weights(compute(*moved))).sum()))
        found[index] = (sums[0] - sums[1]) / (2 * STEP)
    return found


def _weights(output: Array) -> Array:
    """Returns an output gradient that differs for each value."""
    return np.arange(1.0, output.size + 1).reshape(np.shape(output))


def _inputs(count: int, *, low: float) -> list[Array]:
    random = np.random.default_rng(7)
    return [random.uniform(low, 0.9, (2, 3)) for _ in range(count)]


SPECIAL = [getattr(scipy.special, name) for name in derivatives.special.UFUNCS]


@pytest.mark.parametrize("ufunc", [*derivatives.UFUNCS, *SPECIAL], ids=lambda ufunc: ufunc.__name__)
def test_ufunc_derivatives_match_finite_differences(ufunc: np.ufunc) -> None:
    for low in (0.1, -0.9) if ufunc in BELOW_0 else (0.1,):
        inputs = _inputs(ufunc.nin, low=low)
        output = ufunc(*inputs)
        derivative: Any = derivatives.derivative_of(ufunc)
        found = derivative(_weights(output), output, *inputs)
        assert len(found) == ufunc.nin
        for place, gradient in enumerate(found):
            expected = _differences(ufunc, inputs, place)
            np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("function", "compute"),
    [
        (np.sum, lambda rule, x: rule(x)),
        (np.sum, lambda rule, x: rule(x, 1)),
        (np.sum, lambda rule, x: rule(x, axis=(0, 1), keepdims=True)),
        (np.mean, lambda rule, x: rule(x)),
        (np.mean, lambda rule, x: rule(x, -1)),
        (np.mean, lambda rule, x: rule(x, axis=0, keepdims=True)),
        (np.max, lambda rule, x: rule(x)),
        (np.max, lambda rule, x: rule(x, axis=(0, 1), keepdims=True)),
        (np.min, lambda rule, x: rule(x, 1)),
        (np.var, lambda rule, x: rule(x)),
        (np.var, lambda rule, x: rule(x, 0, ddof=1, keepdims=True)),
        (np.std, lambda rule, x: rule(x, axis=-1)),
        (np.linalg.norm, lambda rule, x: rule(x)),
        (np.linalg.norm, lambda rule, x: rule(x, axis=1, keepdims=True)),
        (np.clip, lambda rule, x: rule(x, 0.3, 0.6)),
        (np.broadcast_to, lambda rule, x: rule(x, (4, 2, 3))),
        (np.take, lambda rule, x: rule(x, [5, 0, 0])),
        (np.take, lambda rule, x: rule(x, [[2, 0], [2, 2]], axis=-1)),
        (np.swapaxes, lambda rule, x: rule(x, 0, -1)),
        (np.clip, lambda rule, x: rule(x, np.full((4, 1, 1), 0.3), None)),
        (np.reshape, lambda rule, x: rule(x, (3, 2))),
        (np.ravel, lambda rule, x: rule(x)),
        (np.expand_dims, lambda rule, x: rule(x, axis=(0, -1))),
        (np.transpose, lambda rule, x: rule(x)),
        (np.transpose, lambda rule, x: rule(x, (-1, 0))),
        (np.diag, lambda rule, x: rule(x, k=1)),
        (np.diagonal, lambda rule, x: rule(x)),
        (np.flip, lambda rule, x: rule(x, axis=1)),
        (np.moveaxis, lambda rule, x: rule(x, 0, -1)),
        (np.repeat, lambda rule, x: rule(x, [2, 0], axis=0)),
        (np.roll, lambda rule, x: rule(x, 1)),
        (np.take_along_axis, lambda rule, x: rule(x, np.array([[2, 2], [0, 1]]), axis=1)),
        (np.tile, lambda rule, x: rule(x, (2, 2))),
    ],
)
def test_derivatives_of_array_functions_match_finite_differences(
    function: Any, compute: Callable[[Callable[..., Any], Array], Any]
) -> None:
    (values,) = _inputs(1, low=0.1)
    computed = compute(derivatives.FUNCTIONS[function].compute, values)
    np.testing.assert_array_equal(computed.value, compute(function, values))
    (gradient,) = computed.backward(_weights(computed.value))
    expected = _differences(lambda x: compute(function, x), [values], 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


def test_gradient_of_diag_is_taken_from_its_diagonal() -> None:
    computed = derivatives.FUNCTIONS[np.diag].compute(np.array([1.0, 2.0]), -1)
    assert computed.value.tolist() == [[0, 0, 0], [1, 0, 0], [0, 2, 0]]
    (gradient,) = computed.backward(np.arange(9.0).reshape(3, 3))
    assert gradient.tolist() == [3.0, 7.0]


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((3,), (2, 1)), ((), (4, 2, 3)), ((1, 3), ())]
)
def test_gradient_of_where_sums_over_broadcast_inputs(shapes: tuple[tuple[int, ...], ...]) -> None:
    condition = np.array([[True, False, True], [False, False, True]])
    inputs = [np.array(np.random.default_rng(3).normal(size=shape)) for shape in shapes]
    computed = derivatives.FUNCTIONS[np.where].compute(condition, *inputs)
    for place, gradient in enumerate(computed.backward(_weights(computed.value))):
        assert gradient.shape == shapes[place]
        expected = _differences(lambda x, y: np.where(condition, x, y), inputs, place)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("product", [np.matmul, np.dot])
@pytest.mark.parametrize(
    "shapes",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((1, 1), (1, 1)),
        ((2, 3), (3, 1)),
        ((0, 3), (3, 2)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((1, 2, 3), (5, 3, 4)),
    ],
)
def test_gradients_of_matmul_and_dot_match_finite_differences(
    product: Any, shapes: tuple[tuple[int, ...], ...]
) -> None:
    _check_product(product, shapes)


@pytest.mark.parametrize("product", [np.dot, np.inner])
@pytest.mark.parametrize("shapes", [((), ()), ((2, 3), ()), ((), (3,))])
def test_gradients_of_dot_and_inner_with_scalars_match_finite_differences(
    product: Any, shapes: tuple[tuple[int, ...], ...]
) -> None:
    _check_product(product, shapes)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3,)), ((4, 2, 3), (5, 3))])
def test_gradients_of_inner_match_finite_differences(shapes: tuple[tuple[int, ...], ...]) -> None:
    _check_product(np.inner, shapes)


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((2, 3), (2, 2)), ((), (2,))])
def test_gradients_of_outer_match_finite_differences(shapes: tuple[tuple[int, ...], ...]) -> None:
    _check_product(np.outer, shapes)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
        ("bfi, bgi -> bfg", ((2, 3, 4), (2, 5, 4))),
        ("ij,ij->i", ((2, 3), (1, 3))),
        ("ij->", ((2, 3),)),
        ("ij->ji", ((2, 3),)),
        ("i,j,ij->j", ((2,), (3,), (2, 3))),
        ("ij,k->i", ((2, 3), (4,))),
        ("...i,...i->...", ((4, 2, 3), (2, 3))),
        ("...i,ij", ((4, 2, 3), (3, 2))),
        ("ij,ij->ij", ((0, 3), (0, 3))),
        ("ij,k->k", ((0, 3), (2,))),
    ],
)
def test_gradients_of_einsum_match_finite_differences(
    subscripts: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    _check_product(functools.partial(np.einsum, subscripts), shapes, subscripts)


def test_gradient_of_einsum_with_repeated_axis_is_refused() -> None:
    computed = derivatives.FUNCTIONS[np.einsum].compute("ii->i", np.ones((2, 2)))
    with pytest.raises(UnimplementedError, match="'ii': name each axis once"):
        computed.backward(np.ones(2))


@pytest.mark.parametrize(
    ("function", "axis", "shapes"),
    [
        (np.concatenate, 0, ((2, 3), (1, 3), (0, 3))),
        (np.concatenate, -1, ((2, 3), (2, 1))),
        (np.concatenate, None, ((2, 3), (1,))),
        (np.stack, 0, ((2, 3), (2, 3))),
        (np.stack, -1, ((2, 3), (2, 3), (2, 3))),
    ],
)
def test_gradients_of_concatenate_and_stack_match_finite_differences(
    function: Any, axis: int | None, shapes: tuple[tuple[int, ...], ...]
) -> None:
    inputs = [np.array(np.random.default_rng(3).normal(size=shape)) for shape in shapes]
    computed = derivatives.LIST_FUNCTIONS[function].compute(*inputs, axis=axis)
    np.testing.assert_array_equal(computed.value, function(inputs, axis))
    for place, gradient in enumerate(computed.backward(_weights(computed.value))):
        assert gradient.shape == shapes[place]
        expected = _differences(lambda *given: function(given, axis), inputs, place)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


def test_gradient_of_max_is_shared_among_equal_maxima() -> None:
    computed = derivatives.FUNCTIONS[np.max].compute(np.array([[1.0, 1.0], [0.0, 2.0]]), 1)
    (gradient,) = computed.backward(np.array([1.0, 3.0]))
    assert gradient.tolist() == [[0.5, 0.5], [0.0, 3.0]]


@pytest.mark.parametrize("function", [np.std, np.linalg.norm])
def test_gradient_of_std_and_norm_at_zero_is_zero(function: Any) -> None:
    computed = derivatives.FUNCTIONS[function].compute(np.zeros(3))
    (gradient,) = computed.backward(np.ones(()))
    assert gradient.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, as the value is NaN
@pytest.mark.parametrize("function", [np.var, np.std])
@pytest.mark.parametrize(("rows", "ddof"), [(0, 0), (1, 1)])
def test_gradient_of_variance_of_too_few_values_is_nan(function: Any, rows: int, ddof: int) -> None:
    computed = derivatives.FUNCTIONS[function].compute(np.ones((rows, 2)), 0, ddof=ddof)
    assert np.isnan(computed.value).all()
    (gradient,) = computed.backward(np.ones(2))
    assert gradient.shape == (rows, 2)
    assert np.isnan(gradient).all()


def _check_product(product: Any, shapes: tuple[tuple[int, ...], ...], *first: str) -> None:
    inputs = [np.array(np.random.default_rng(3).normal(size=shape)) for shape in shapes]
    computed = derivatives.FUNCTIONS[getattr(product, "func", product)].compute(*first, *inputs)
    np.testing.assert_array_equal(computed.value, product(*inputs))
    for place, gradient in enumerate(computed.backward(_weights(computed.value))):
        assert gradient.shape == shapes[place]
        expected = _differences(product, inputs, place)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


def test_gradient_of_transpose_restores_axes() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    computed = derivatives.FUNCTIONS[np.transpose].compute(values, (1, -1, 0))
    assert computed.value.shape == (3, 4, 2)
    (gradient,) = computed.backward(computed.value)
    np.testing.assert_array_equal(gradient, values)


@pytest.mark.parametrize(
    "key",
    [
        1,
        (slice(None), 0),
        (..., None, slice(None, None, -2)),
        [0, 1, 0, -1],
        ([0, 1, 1], [2, 2, 2]),
        np.array([[True, False, True], [False, False, True]]),
    ],
)
def test_gradient_of_indexing_sums_over_repeated_indices(key: Any) -> None:
    values = np.array(np.random.default_rng(3).normal(size=(2, 3)))
    computed = derivatives.INDEXING.compute(values, key)
    np.testing.assert_array_equal(computed.value, values[key])
    assert not np.shares_memory(computed.value, values)
    (gradient,) = computed.backward(_weights(computed.value))
    expected = _differences(lambda x: x[key], [values], 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("key", [[0, 1, -1, 1], [[2, -3], [2, 2]], np.array([1], np.uint8), []])
@pytest.mark.parametrize("shape", [(3, 4), (3,), (3, 2, 2), (3, 0)])
def test_gradient_of_float32_row_indexing_sums_over_repeated_rows(
    shape: tuple[int, ...], key: Any
) -> None:
    places = np.array(key, np.int64)
    values = np.zeros(shape, np.float32)
    computed = derivatives.INDEXING.compute(values, places)
    weights = _weights(computed.value).astype(np.float32)
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, places, weights)
    (gradient,) = computed.backward(weights)
    np.testing.assert_array_equal(gradient, expected)


def test_gradient_of_power_at_zero_or_negative_base_is_finite() -> None:
    base, exponent = np.array([0.0, 0.0, 0.0, -2.0]), np.array([0.0, 1.0, 2.0, 3.0])
    of_base, of_exponent = derivatives.UFUNCS[np.power](np.ones(4), base**exponent, base, exponent)
    assert of_base.tolist() == [0.0, 1.0, 0.0, 12.0]
    assert of_exponent.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_gradient_of_mean_of_empty_array_is_empty() -> None:
    with pytest.warns(RuntimeWarning):
        computed = derivatives.FUNCTIONS[np.mean].compute(np.zeros(0))
    (gradient,) = computed.backward(np.ones(()))
    assert gradient.shape == (0,)


def test_signature_of_derivative_rule_is_inspected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_function: Any) -> None:
        raise AssertionError("it takes a third of the time of a call")

    np.mean(Tensor([1.0, 2.0]))
    monkeypatch.setattr(inspect, "signature", refuse)
    assert float(np.mean(Tensor([2.0, 3.0]))) == 2.5
