"""What operators and NumPy's functions make of a tensor: values, gradients, refusals."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable
from math import hypot
from math import log as logarithm
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.special

from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.variables.variable import Variable
from tests.unit.pstrain.gradients.tape_cases import read, total, vector

pytestmark = pytest.mark.usefixtures("own_parameters")


def test_arithmetic_has_correct_gradients() -> None:
    x, y = Variable(vector(3.0, 2.0), name="x"), Variable(vector(5.0, 7.0), name="y")
    with GradientTape() as tape:
        a, b = read(x), read(y)
        loss = total(a * b - 2.0 * a + (1.0 - b) / 4.0 + a * a)
    gradients = tape.gradients(loss)
    assert float(loss) == pytest.approx(15 + 14 - 6 - 4 - 1 - 1.5 + 9 + 4)
    np.testing.assert_allclose(gradients.of(x).gradient, [5 - 2 + 6, 7 - 2 + 4])
    np.testing.assert_allclose(gradients.of(y).gradient, [3 - 0.25, 2 - 0.25])


@pytest.mark.parametrize(
    ("compute", "derivative"),
    [
        (lambda x: np.float32(2) * x, [2, 2]),
        (lambda x: x + np.float64(0.5) * x, [1.5, 1.5]),
        (lambda x: np.array([4, 6], np.float32) * x - np.array([1.0, 1.0]), [4, 6]),
        (lambda x: np.array([9, 9]) - x, [-1, -1]),
        (lambda x: np.negative(np.multiply(x, x)), [-6, -4]),
        (lambda x: x / (x * x), [-1 / 9, -1 / 4]),
        (lambda x: x / np.array([2.0, 4.0]), [0.5, 0.25]),
        (lambda x: np.float32(1) / x, [-1 / 9, -1 / 4]),
        (lambda x: x**3, [27, 12]),
        (lambda x: x ** np.float64(3), [27, 12]),
        (lambda x: x ** np.int64(2), [6, 4]),
        (lambda x: x**0.5, [0.5 / 3**0.5, 0.5 / 2**0.5]),
        (lambda x: (x - x) ** 0, [0, 0]),
        (lambda x: x**x, [27 * (np.log(3) + 1), 4 * (np.log(2) + 1)]),
        (lambda x: 2.0**x, [8 * np.log(2), 4 * np.log(2)]),
        (lambda x: np.array([1, 2], np.float32) ** x, [0, 4 * np.log(2)]),
        (lambda x: np.exp(-x), [-np.exp(-3), -np.exp(-2)]),
        (lambda x: np.log1p(np.exp(np.negative(x))), [-1 / (1 + np.exp(3)), -1 / (1 + np.exp(2))]),
        (lambda x: np.maximum(x, 2.5), [1, 0]),
        (lambda x: np.minimum(np.array([2.5, 2.5]), np.float32(1) * x), [0, 1]),
        (lambda x: abs(1 - np.abs(x)), [1, 1]),
        (lambda x: np.clip(x, None, 2.5), [0, 1]),
        (lambda x: np.clip(x, min=2.5), [1, 0]),
        (lambda x: np.clip(x * x, min=1.0, max=5.0), [0, 4]),
        (lambda x: np.where([True, False], x * x, 0.0), [6, 0]),
        (lambda x: np.where([[True], [False]], x * x, x), [7, 5]),
        (lambda x: np.sum(x * x), [6, 4]),
        (lambda x: np.mean(x * x, keepdims=True), [3, 2]),
        (lambda x: np.reshape(x * x, (2, 1)), [6, 4]),
        (lambda x: x * np.sign(x) + np.floor(x), [1, 1]),
    ],
)
def test_operations_with_numbers_and_arrays_keep_gradient(
    compute: Callable[[Tensor], Tensor], derivative: list[float]
) -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape() as tape:
        result = compute(read(x))
        loss = total(result)
    assert result.dtype in (np.float32, np.float64)
    np.testing.assert_allclose(tape.gradients(loss).of(x).gradient, derivative, rtol=1e-6)


def test_float64_sums_keep_precision_and_gradient() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape() as tape:
        rows = np.array([1.0, 1e-12]) + read(x)
        loss = np.float64(1e-12)
        loss += total(rows)
    assert rows.dtype == loss.dtype == np.float64
    assert rows.value[1] == 2.0 + 1e-12
    update = tape.gradients(loss).of(x)  # type: ignore[arg-type]
    assert update.gradient.dtype == np.float32
    assert update.gradient.tolist() == [1.0, 1.0]


def test_untracked_tensor_can_be_added_to_array_in_place() -> None:
    array = np.zeros(2)
    alias = array
    array += Tensor(vector(3.0, 2.0))
    array -= Tensor(np.float32(1.0))
    np.add.at(array, [0, 0], Tensor(vector(1.0, 1.0)))
    assert array is alias
    assert (type(array), array.dtype, array.tolist()) == (np.ndarray, np.float64, [4.0, 1.0])


@pytest.mark.parametrize(
    ("compute", "named"),
    [
        (lambda x: np.fmod(x, 2.0), "numpy.fmod has no gradient"),
        (lambda x: 5.0 % x.value * np.remainder(5.0, x), "numpy.remainder has no gradient"),
        (lambda x: np.vdot(np.ones(2), x), "numpy.vdot has no gradient"),
        (lambda x: np.matmul(np.ones((2, 2)), x, dtype=np.float64), "numpy.matmul has no gradient"),
        (lambda x: np.add.reduce(x), "numpy.add.reduce has no gradient"),
        (lambda x: np.linalg.norm(x, 1), "numpy.linalg.norm has no gradient"),
        (lambda x: np.hstack([np.ones(1), x]), "numpy.hstack has no gradient"),
        (lambda x: np.sum(x, dtype=np.float64), "numpy.sum has no gradient"),
        (lambda x: np.clip(np.ones(2), 0.0, x), "numpy.clip has no gradient"),
        (lambda x: np.split(x, 2), "numpy.split has no gradient"),
        (lambda x: np.stack(collections.deque([x, x])), "numpy.stack has no gradient"),  # type: ignore[call-overload]
        (lambda x: np.add(np.ones(2), x, out=np.ones(2)), "numpy.add would put"),
        (lambda x: np.add.at(np.ones(2), [0, 1], x), "numpy.add.at would put"),
        (lambda x: np.copyto(np.ones(2), x), "numpy.copyto would put"),
        (lambda x: np.put(np.ones(2), [0, 1], x), "numpy.put would put"),
        (lambda x: np.sum(x, 0, out=np.ones(())), "numpy.sum would put"),
        (lambda x: np.clip(np.ones(2), min=0.0, max=x), "numpy.clip has no gradient"),
        (lambda x: np.mean([x, x]), "tensors in a list"),
        (lambda x: np.max([np.sum(x), np.mean(x)]), "tensors in a list"),
        (lambda x: np.exp([x, 2.0 * x]), "tensors in a list"),
        (lambda x: np.exp([np.sum(x)], dtype=np.float32), "tensors in a list"),
        (lambda x: np.multiply(*[[x], 2.0]), "tensors in a list"),
        (lambda x: np.add.reduce([np.sum(x) for _ in range(2)]), "tensors in a list"),
        (lambda x: np.dot([np.sum(x), np.mean(x)], [1.0, 2.0]), "tensors in a list"),
        (lambda x: np.concatenate([np.ones(1), [np.sum(x)]]), "tensors in a list"),
        (lambda x: np.ones((2, 2)) * [x, x], "tensors in a list"),
        (scipy.special.gammaln, "^gammaln has no gradient"),
        (scipy.special.logsumexp, r"SciPy's functions .*np.sum\(np.exp\(x\)\).* erf, expit"),
    ],
)
def test_numpy_call_that_would_lose_gradient_is_refused(
    compute: Callable[[Tensor], object], named: str
) -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    value = compute(Tensor(vector(3.0, 2.0)))
    assert value is None or isinstance(value, np.ndarray | np.generic | list)
    with GradientTape():
        compute(Tensor(vector(3.0, 2.0)))
        with pytest.raises(UnimplementedError, match=rf"{named}.*tensor.numpy\(\)"):
            compute(read(x))
        assert np.fmod(read(x).numpy(), 2.0).tolist() == [1.0, 0.0]


def test_math_functions_on_tracked_values_are_refused() -> None:
    x, rate = Variable(vector(3.0), name="x"), Variable(3.0)
    with GradientTape():
        tensor = np.sum(read(x))
        assert math.exp(float(tensor)) > 20
        assert not math.isnan(tensor)
        with pytest.raises(UnimplementedError, match=r"np\.exp\(tensor\), or math\.exp\(float"):
            math.exp(tensor)
        assert math.exp(float(rate)) > 20
        assert math.floor(rate) == 3
        e = float  # not taken for math.e, which is no function
        assert e(tensor) == 3.0
        with pytest.raises(UnimplementedError, match=r"np\.log\(variable\), or math\.log\(float"):
            math.log(rate)
        for compute in (lambda x: math.erf(x), lambda x: math.fsum([x]), lambda x: hypot(x, 1)):
            for one in (rate, tensor):
                with pytest.raises(UnimplementedError, match=r"it by what has one \(absolute, "):
                    compute(one)
        of_another = eval("lambda random, x: random.gamma(x)", {})
        assert of_another(np.random.default_rng(0), tensor) > 0
    assert math.exp(tensor) == math.exp(rate) > 20


@pytest.mark.parametrize(
    ("compute", "named"),
    [
        (lambda x: logarithm(x), r"np\.log\("),
        (lambda x: list(map(math.exp, [x])), r"np\.exp\("),
        (lambda x: [*map(logarithm, [x])], r"np\.log\("),
        (lambda x: functools.reduce(math.atan2, [x, 2.0]), r"it by what has one"),
        (lambda x: math.exp(next(map(abs, [x]))), r"np\.exp\("),
    ],
)
def test_aliased_or_mapped_math_functions_are_refused(
    compute: Callable[[Any], Any], named: str
) -> None:
    x, rate = Variable(vector(3.0), name="x"), Variable(3.0)
    with GradientTape():
        tensor = np.sum(read(x))
        for one in (tensor, rate):
            with pytest.raises(UnimplementedError, match=named):
                compute(one)
        assert list(map(float, [tensor, rate])) == [3.0, 3.0]
        assert f"{math.exp(0.0)} {float(tensor)}" == "1.0 3.0"
        assert list(map(math.floor, [tensor])) == [3]
    assert compute(tensor)


class AttributesNamedLikeMath:
    """An object with an attribute named as in ``math``, and a ``__name__`` that is no text."""

    gamma = 2.0
    __name__ = 3


def test_names_next_to_mapped_function_are_not_taken_for_math_functions() -> None:
    x, named = Variable(vector(3.0), name="x"), AttributesNamedLikeMath()
    with GradientTape():
        tensor = np.sum(read(x))
        assert list(map(float, [tensor, named.gamma])) == [3.0, 2.0]
        assert list(map(float, [np.log(tensor), math.log(3.0)])) == pytest.approx(2 * [np.log(3)])
        assert [*map(named and float, [tensor])] == [3.0]


def test_calls_on_variable_that_would_lose_gradient_are_refused() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    for compute in (scipy.special.logsumexp, lambda x: np.mean([x, x])):
        assert compute(x) > 2
        with GradientTape():
            assert np.asarray(x).tolist() == [3.0, 2.0]
            with pytest.raises(UnimplementedError, match=r"tensor.numpy\(\)"):
                compute(x)


def test_list_of_tensors_beside_tensor_is_refused() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape():
        tensor = read(x)
        for name, compute in (
            ("where", lambda: np.where([True, False], [np.sum(tensor), 1.0], tensor)),
            ("matmul", lambda: [tensor, tensor] @ tensor),
            ("dot", lambda: np.dot([[np.sum(tensor), 1.0]], tensor)),
        ):
            with pytest.raises(UnimplementedError, match=rf"numpy.{name} has no gradient here"):
                compute()


def test_indexing_and_reshaping_of_tensor_have_gradients() -> None:
    x = Variable(vector(1.0, 2.0, 3.0), name="x")
    with GradientTape() as tape:
        column = read(x).reshape(3, 1)
        first = column[:, 0]
        loss = np.sum(first[[0, 0, 2]] * np.squeeze(column, axis=1)) + sum(first) * 10.0
    assert float(loss) == 1 * 1 + 1 * 2 + 3 * 3 + 60
    assert tape.gradients(loss).of(x).gradient.tolist() == [1 + 1 + 2 + 10, 1 + 10, 3 + 3 + 10]
    assert column.reshape((1, 3)).shape == (1, 3)
    with pytest.raises(IndexError):
        column[3]
    with pytest.raises(TypeError, match="iteration over a scalar"):
        list(loss)


def _put(array: np.ndarray, place: Any, value: Any) -> None:
    array[place] = value


@pytest.mark.parametrize(
    ("shape", "place", "value"),
    [
        ((2,), slice(None), lambda x: x),
        ((3, 2), 1, lambda x: x),
        ((2, 2), slice(None), lambda x: [x, x]),
        ((2,), [True, True], lambda x: x),
    ],
)
def test_assigning_tracked_tensor_into_array_is_refused(
    shape: tuple[int, ...], place: Any, value: Callable[[Tensor], Any]
) -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape():
        _put(np.zeros(shape), place, value(Tensor(vector(3.0, 2.0))))
        with pytest.raises(UnimplementedError, match=r"array\[...\] = tensor.numpy\(\)"):
            _put(np.zeros(shape), place, value(read(x)))
        losses: dict[str, Any] = {}
        losses["first"] = [read(x)]
        history = np.zeros(2)
        history[1] = np.sum(read(x))
    assert history.tolist() == [0.0, 5.0]
    _put(history, slice(None), read(x))
    assert history.tolist() == [3.0, 2.0]


def test_functions_without_gradient_return_arrays() -> None:
    x = Variable(vector(3.5, -2.0), name="x")
    with GradientTape():
        tensor = read(x)
        assert (np.sign(tensor) == [1, -1]).all()
        assert np.floor(tensor).tolist() == np.trunc(tensor - 0.5).tolist() == [3.0, -2.0]
        assert (np.isnan(tensor) | (tensor > 3)).tolist() == [True, False]
        assert (np.argmax(tensor), np.shape(tensor), np.size(tensor)) == (0, (2,), 2)
        assert np.zeros_like(tensor).tolist() == [0.0, 0.0]
        assert np.asarray(tensor).tolist() == [3.5, -2.0]
        np.testing.assert_array_equal(tensor, [3.5, -2.0])
        for take in (np.asarray, np.array, functools.partial(np.asarray, dtype=np.float64)):
            assert take([tensor, tensor]).tolist() == [[3.5, -2.0]] * 2
        assert np.greater([tensor, tensor], 0.0).tolist() == [[True, False]] * 2
        assert (np.zeros((2, 2)) < [tensor, tensor]).tolist() == [[True, False]] * 2
        assert np.floor([np.sum(tensor)]).tolist() == [1.0]


def test_numpy_functions_accept_variables_beside_tensors() -> None:
    x, y = Variable(vector(3.0, 2.0), name="x"), Variable(vector(1.0, 4.0), name="y")
    with GradientTape() as tape:
        loss = np.sum(np.maximum(read(x), y) + np.where([True, False], read(x), y))
    assert isinstance(loss, Tensor)
    assert tape.gradients(loss).of(x).gradient.tolist() == [2.0, 0.0]
    assert tape.gradients(loss).of(y).gradient.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w: x @ read(w),
        lambda x, w: x.tolist() @ read(w),
        lambda x, w: (read(w).T @ x.T).T,
        lambda x, w: read(w).T @ x[:, :, np.newaxis],
        lambda x, w: Tensor(x) @ read(w),
        lambda x, w: Tensor(x) @ w,
        lambda x, w: Tensor(x) @ (w @ Tensor(np.eye(2, dtype=np.float32))),
        lambda x, w: np.matmul(x, read(w)),
        lambda x, w: np.dot(x, read(w)),
        lambda x, w: np.dot(Tensor(x), w),
    ],
)
def test_matrix_products_have_gradients(multiply: Callable[[Any, Variable], Tensor]) -> None:
    """Of the sum of ``x @ w`` the gradient by each row of ``w`` is the sum of a column of ``x``."""
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    w = Variable(np.array([[1, -1], [2, 0.5]], np.float32), name="w")
    with GradientTape() as tape:
        product = multiply(x, w)
        loss = np.sum(product)
    np.testing.assert_allclose(np.squeeze(product.value), x @ w.numpy())
    found = tape.gradients(loss).of(w).gradient  # type: ignore[arg-type]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[9, 9], [12, 12]])


def test_product_of_two_tensors_has_gradients_for_both() -> None:
    x, w = Variable(vector(3.0, 2.0), name="x"), Variable(vector(5.0, 7.0), name="w")
    with GradientTape() as tape:
        loss = read(x) @ read(w)
    assert (loss.shape, float(loss)) == ((), 29.0)
    assert tape.gradients(loss).of(x).gradient.tolist() == [5.0, 7.0]
    assert tape.gradients(loss).of(w).gradient.tolist() == [3.0, 2.0]


def test_scalar_variable_is_refused_by_matmul_and_scales_by_dot() -> None:
    scale, tensor = Variable(np.float32(3.0), name="scale"), Tensor(np.ones((2, 2), np.float32))
    with GradientTape() as tape:
        with pytest.raises(InvalidArgumentError, match=r"shapes \(2, 2\) and \(\).*`\*`"):
            tensor @ scale
        loss = np.sum(np.dot(tensor, scale))
    assert float(loss) == 12.0
    assert tape.gradients(loss).of(scale).gradient.tolist() == 4.0  # type: ignore[arg-type]


def test_matrices_of_mismatched_shapes_are_refused() -> None:
    tensor = Tensor(np.ones((2, 3)))
    for multiply in (np.matmul, np.dot):
        with pytest.raises(InvalidArgumentError, match=r"shapes \(2, 3\) and \(2, 3\)"):
            multiply(tensor, tensor.value)
    with pytest.raises(InvalidArgumentError, match=r"shapes \(3,\) and \(2, 3\)"):
        np.ones(3) @ tensor


def test_numpy_in_place_functions_refuse_tensor() -> None:
    tensor = Tensor([3.0, 2.0])
    for change in (
        lambda: np.add(1.0, np.ones(2), out=tensor),  # type: ignore[call-overload]
        lambda: np.add.at(tensor, [0], 1.0),  # type: ignore[arg-type]
        lambda: np.copyto(tensor, 1.0),  # type: ignore[arg-type]
        lambda: np.fill_diagonal(tensor, 1.0),  # type: ignore[arg-type]
        lambda: np.sum(np.ones((2, 2)), axis=0, out=tensor),  # type: ignore[call-overload]
    ):
        with pytest.raises(TypeError, match=r"NotImplemented|no implementation found"):
            change()
    assert tensor.value.tolist() == [3.0, 2.0]


@pytest.mark.parametrize("sign", ["%", "//", "<", "==", "!="])
def test_operators_without_gradient_equal_numpy(sign: str) -> None:
    array, values = np.array([7.0, 2.0]), np.array([3.0, 2.0])
    found = eval(f"array {sign} tensor", {"array": array, "tensor": Tensor(values)})
    np.testing.assert_array_equal(found, eval(f"array {sign} values"))
    assert not isinstance(found, Tensor)


def test_tensor_equality_is_elementwise() -> None:
    tensor = Tensor([1.0, 0.0])
    for other in (np.array([1, 1]), [1, 1], 1, np.float32(1), Tensor([1.0, 1.0])):
        assert (tensor == other).tolist() == (other == tensor).tolist() == [True, False]
        assert (tensor != other).tolist() == [False, True]
    assert np.mean(np.array([1, 1]) == tensor) == 0.5
    assert tensor not in [None, "text", {}]
    assert tensor in {tensor}


def test_integer_tensor_times_float_is_not_rounded() -> None:
    assert (Tensor([1, 2]) * 0.5).value.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + np.zeros(3),
        lambda x: np.zeros((2, 1)) * x,
        lambda x: x / Tensor(np.ones((2, 1))),
        lambda x: np.maximum(x, np.ones((3, 1))),
    ],
)
def test_operands_that_would_both_be_broadcast_are_refused(
    compute: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"shapes .*\(2,\).* need the same shape"):
        compute(Tensor([3.0, 2.0]))


@pytest.mark.parametrize(
    ("compute", "gradient"),
    [
        (lambda x: x * np.arange(6.0).reshape(3, 2), [6, 9]),
        (lambda x: np.arange(6.0).reshape(3, 2) * x, [6, 9]),
        (lambda x: x.reshape(2, 1) - np.ones((2, 3)), [3, 3]),
        (lambda x: np.ones((4, 2, 3)) / x.reshape(2, 1), [-12 / 9, -3]),
        (lambda x: np.sum(x) * np.ones(5), [5, 5]),
        (lambda x: x - np.mean(x), [0, 0]),
        (lambda x: x**2 * Tensor(np.float32(2.0)), [12, 8]),
        (lambda x: np.maximum(x, np.full((2, 2), 2.5)), [2, 0]),
    ],
)
def test_gradient_of_broadcast_tensor_is_summed(
    compute: Callable[[Tensor], Tensor], gradient: list[float]
) -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape() as tape:
        result = compute(read(x))
        loss = np.sum(result)
    np.testing.assert_array_equal(result.value, compute(Tensor(x.numpy())).value)
    found = tape.gradients(loss).of(x).gradient  # type: ignore[arg-type]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-7)


def test_result_dtype_follows_operand_of_larger_shape() -> None:
    tensor = Tensor(vector(3.0, 2.0))
    assert (np.ones((3, 2)) * tensor).dtype == np.float64
    assert (np.ones((3, 2)) * tensor.reshape(2)[:1]).dtype == np.float64
    assert (np.ones(2) * Tensor(np.ones((3, 2), np.float32))).dtype == np.float32


def test_incompatible_shapes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\(2,\) and \(3,\)"):
        Tensor(np.zeros(2)) + Tensor(np.zeros(3))


def test_clip_with_mixed_names_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="a_min and a_max"):
        np.clip(Tensor(vector(3.0)), 0.0, min=1.0)  # type: ignore[call-overload]


def test_untracked_tensors_in_list_become_array() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape():
        tensor = read(x)
        assert np.mean([Tensor(1.0), Tensor(3.0)]) == 2.0
        assert (tensor < Tensor(2.5)).tolist() == [False, True]
        assert (np.float32(2.5) * tensor > tensor).tolist() == [True, True]
    assert np.asarray(tensor).tolist() == [3.0, 2.0]
    assert np.mean([tensor, tensor]) == 2.5


def test_missing_array_method_of_tensor_is_refused_with_remedy() -> None:
    tensor = Tensor(np.ones(3, np.float32))
    with pytest.raises(AttributeError, match=r"write np\.sum\(tensor\), or tensor\.numpy\(\)\.sum"):
        tensor.sum()
    with pytest.raises(AttributeError, match=r"write tensor\.numpy\(\)\.tolist"):
        tensor.tolist()
    assert not hasattr(tensor, "no_such_thing")


def test_column_of_fixed_size_lists_is_a_matrix_to_operators_of_tensors_and_variables() -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 3.0, 4.0], pa.float32()), 2)
    weights = Variable(np.array([[1.0], [10.0]], np.float32))
    assert (column @ weights).tolist() == [[21.0], [43.0]], "without a tape"
    with GradientTape() as tape:
        made = column @ weights
        scaled = column * Tensor(np.float32(2.0)) + column
        loss = np.sum(made) + np.sum(scaled)
    assert isinstance(made, Tensor)
    assert made.numpy().tolist() == [[21.0], [43.0]]
    assert scaled.numpy().tolist() == [[3.0, 6.0], [9.0, 12.0]]
    assert np.asarray(tape.gradient(loss, weights)).tolist() == [[4.0], [6.0]]
    assert Tensor(pa.chunked_array([column])).shape == (2, 2)
