"""What the tape records and how gradients of repeated uses add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.gradients.recording import leaf, record
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers import Embedding
from pstrain.layers.base import whole_leaf
from pstrain.metrics import AUC, Mean
from pstrain.optimizers import SGD
from pstrain.variables.base import new_handle
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable
from pstrain.vocabulary import Fetch
from tests.unit.pstrain.gradients.tape_cases import read, total, vector

pytestmark = pytest.mark.usefixtures("own_parameters")


def test_model_of_plain_variables_is_trained_by_tape() -> None:
    weights, bias = Variable(np.zeros((2, 1), np.float32)), Variable(0.0)
    x = np.array([[1, 2], [3, -1], [0, 1], [2, 2]], np.float32)
    wanted = x @ np.array([[1], [-2]], np.float32) + 3
    optimizer = SGD(0.1)
    for _ in range(300):
        with GradientTape() as tape:
            loss = np.mean(np.square(x @ weights + bias - wanted))
        gradients = tape.gradient(loss, [weights, bias])  # type: ignore[arg-type]
        optimizer.apply_gradients(zip(gradients, [weights, bias], strict=True))
    np.testing.assert_allclose(weights.numpy(), [[1], [-2]], atol=1e-3)
    assert float(bias) == pytest.approx(3, abs=1e-3)


@pytest.mark.parametrize(
    ("compute", "gradient"),
    [
        (lambda x: x * x, [6, 4]),
        (lambda x: 2 * x - x / 4, [1.75, 1.75]),
        (lambda x: 1 / x, [-1 / 9, -1 / 4]),
        (lambda x: x**2, [6, 4]),
        (lambda x: +abs(-x), [1, 1]),
        (lambda x: np.square(x), [6, 4]),
        (lambda x: np.add(x, x), [2, 2]),
        (lambda x: np.float32(2) * x, [2, 2]),
        (lambda x: np.maximum(x, 2.5), [1, 0]),
        (lambda x: np.where([True, False], x, 0), [1, 0]),
        (lambda x: np.ones((3, 2), np.float32) @ x, [3, 3]),
        (lambda x: np.einsum("i,i->", x, x), [6, 4]),
        (lambda x: np.concatenate([x, Tensor(vector(1.0)), x]), [2, 2]),
        (lambda x: np.stack((x, 3 * x), 1), [4, 4]),
        (lambda x: x[0] * x[1], [2, 3]),
        (lambda x: x[[0, 0, 1]] * 2, [4, 2]),
        (lambda x: x[-1:] * x, [2, 7]),
        (lambda x: x[np.array([False, True])], [0, 1]),
        (lambda x: x[...] * 2, [2, 2]),
        (lambda x: sum(row * 2 for row in x), [2, 2]),
    ],
)
def test_computation_on_variable_under_tape_has_gradient(
    compute: Callable[[Any], Any], gradient: list[float]
) -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    plain = compute(x)
    assert not isinstance(plain, Tensor) or not plain.tracked
    with GradientTape() as tape:
        result = compute(x)
        loss = np.sum(result)
    np.testing.assert_array_equal(result.value, np.asarray(plain))
    update = tape.gradients(loss).of(x)  # type: ignore[arg-type]
    found = np.zeros(2, np.float32)
    rows = slice(None) if update.lookup is None else update.lookup.unique
    found[rows] = update.gradient.reshape(-1)
    np.testing.assert_allclose(found, gradient, rtol=1e-6)


def test_tensor_made_of_tensor_or_variable_keeps_gradient() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    assert Tensor(Tensor(x)).value.tolist() == [3.0, 2.0]
    for make in (Tensor, lambda variable: Tensor(read(variable))):
        with GradientTape() as tape:
            loss = np.sum(make(x) * 3.0)
        assert tape.gradients(loss).of(x).gradient.tolist() == [3.0, 3.0]  # type: ignore[arg-type]


def test_untracked_computations_return_arrays() -> None:
    count, frozen = Variable([1, 2]), Variable(vector(1.0, 2.0), trainable=False)
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape():
        for found in (count + 1, np.sqrt(frozen), frozen[:1], x > 2, x // 2, x % 2, np.sign(x)):
            assert isinstance(found, np.ndarray)
        assert isinstance(x.numpy() * 2, np.ndarray)
        assert np.asarray(x).tolist() == [3.0, 2.0]
        with pytest.raises(UnimplementedError, match=r"numpy\.cumsum has no gradient here"):
            np.cumsum(x)
    assert isinstance(x * 2, np.ndarray)
    assert isinstance(np.concatenate([x, x]), np.ndarray)
    assert np.sum(x) == 5.0


def test_numpy_in_place_functions_refuse_variable() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    for change in (
        lambda: np.add(1.0, np.ones(2), out=x),  # type: ignore[call-overload]
        lambda: np.add.at(x, [0], 1.0),  # type: ignore[arg-type]
        lambda: np.copyto(x, 1.0),  # type: ignore[arg-type]
        lambda: np.put(x, [0], 1.0),  # type: ignore[arg-type]
        lambda: np.sum(np.ones((2, 2)), axis=0, out=x),  # type: ignore[call-overload]
    ):
        with pytest.raises(TypeError, match=r"NotImplemented|no implementation found"):
            change()
    assert x.numpy().tolist() == [3.0, 2.0]


def test_shape_functions_do_not_read_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Variable(np.ones((3, 2), np.float32))
    monkeypatch.setattr(Variable, "numpy", lambda _self: pytest.fail("it was read"))
    assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((3, 2), 2, 6, 2)


def test_gradient_of_float64_variable_is_refused_with_remedy() -> None:
    x, wide = Variable(vector(3.0, 2.0)), Variable(np.zeros(2), name="wide")
    with GradientTape() as tape:
        loss = np.sum(read(x) * wide)
    with pytest.raises(InvalidArgumentError, match=r"'wide' holds float64.*dtype='float32'"):
        tape.gradient(loss, [x, wide])  # type: ignore[arg-type]


def test_loss_tensor_can_be_compared_and_formatted() -> None:
    loss = Tensor(np.float32(0.25))
    assert loss < 0.5
    assert not loss >= Tensor(np.float32(0.5))
    assert (Tensor([1.0, 3.0]) > np.array([2.0, 2.0])).tolist() == [False, True]
    assert (Tensor([1.0, 3.0]) <= 1.0).tolist() == [True, False]
    assert f"{loss:.3f} {int(Tensor(7.9))}" == "0.250 7"
    assert f"{loss}" == str(loss)
    assert not Tensor(0.0)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(Tensor([1.0, 2.0]))
    assert not np.isnan(loss)


def test_two_reads_of_variable_give_one_update_with_summed_gradient() -> None:
    x = Variable(vector(3.0, 2.0), name="x")
    with GradientTape() as tape:
        loss = total(read(x) * read(x))
    gradients = tape.gradients(loss)
    assert len(gradients) == 1
    np.testing.assert_allclose(gradients.of(x).gradient, [6.0, 4.0])


def test_gradient_accumulation_does_not_modify_shared_arrays() -> None:
    weights = Variable(np.array([1, 2], np.float32))
    handed_on: list[np.ndarray] = []

    def passed(tensor: Tensor) -> Tensor:
        def backward(gradient: np.ndarray) -> np.ndarray:
            handed_on.append(gradient)
            return gradient

        return record(Tensor(tensor.value), (tensor,), backward)

    with GradientTape() as tape:
        read_once = weights * np.float32(1)
        loss = np.sum(passed(read_once) + passed(read_once) + passed(read_once) + read_once)
    for _ in range(2):
        np.testing.assert_array_equal(tape.gradients(loss).of(weights).gradient, [4, 4])
    assert [gradient.tolist() for gradient in handed_on] == [[1, 1]] * 6


def test_gradients_of_given_variables_are_returned_in_their_order() -> None:
    x, y, unused = (Variable(vector(3.0, 2.0), name=name) for name in ("x", "y", "unused"))
    with GradientTape() as tape:
        loss = total(read(x) * read(y))
    of_y, of_none, of_x = tape.gradient(loss, [y, unused, x])
    np.testing.assert_allclose(of_x.gradient, [3.0, 2.0])
    np.testing.assert_allclose(of_y.gradient, [3.0, 2.0])
    assert of_none is None
    assert tape.gradient(loss, x).variable.id == x.spec.id
    optimizer = SGD(1.0)
    optimizer.apply_gradients(zip([of_y, of_none, of_x], [y, unused, x], strict=True))
    assert x.numpy().tolist() == [0.0, 0.0]
    assert unused.numpy().tolist() == [3.0, 2.0]


def test_two_lookups_in_table_give_one_update_with_summed_gradient() -> None:
    layer = Embedding(10, 2)
    first, second = np.array([3, 1, 3]), np.array([7, 1])
    with GradientTape() as tape:
        loss = total(layer(first)) + total(layer(second)) * 10.0
    (update,) = tape.gradients(loss)
    assert update.lookup is not None
    found = dict(zip(update.lookup.unique.tolist(), update.gradient.tolist(), strict=True))
    assert found == {1: [11.0, 11.0], 3: [2.0, 2.0], 7: [10.0, 10.0]}
    assert update.lookup.offsets.tolist() == [0, 3]


def test_variable_read_whole_and_by_rows_gets_one_dense_gradient() -> None:
    layer = Embedding(10, 2, name="table")
    table = layer.variables[0]
    with GradientTape() as tape:
        loss = total(layer(np.array([1, 4, 4]))) + 0.5 * total(whole_leaf(table, table.numpy()))
    update = tape.gradients(loss).of(table)
    assert update.lookup is None
    expected = np.full((10, 2), 0.5)
    expected[1], expected[4] = 1.5, 2.5
    np.testing.assert_array_equal(update.gradient, expected)


def test_frozen_variables_get_no_gradient() -> None:
    x, frozen = Variable(vector(1.0), name="x"), Variable(vector(2.0), trainable=False)
    with GradientTape() as tape:
        loss = total(read(x) * read(frozen))
    (update,) = tape.gradients(loss)
    assert update.variable.name == "x"
    np.testing.assert_allclose(update.gradient, [2.0])


def test_loss_computed_outside_tape_is_refused() -> None:
    x = Variable(vector(1.0), name="x")
    loss = total(read(x))
    with GradientTape() as tape:
        pass
    with pytest.raises(InvalidArgumentError, match="inside the `with GradientTape"):
        tape.gradients(loss)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Tensor(np.zeros(2)), r"scalar Tensor as loss, got shape \(2,\): take the mean"),
        (np.float32(3.0), r"scalar Tensor as loss, got float32: .*numpy\(\) reads of a variable"),
    ],
)
def test_loss_that_is_no_scalar_tensor_is_refused(loss: object, message: str) -> None:
    with GradientTape() as tape:
        pass
    with pytest.raises(InvalidArgumentError, match=message):
        tape.gradients(loss)  # type: ignore[arg-type]


def test_loss_over_variables_of_different_parameters_is_refused() -> None:
    x = Variable(vector(1.0), name="here")
    with local_parameters():
        y = Variable(vector(1.0), name="there")
    with GradientTape() as tape:
        loss = total(read(x) * read(y))
    with pytest.raises(InvalidArgumentError, match="here, there"):
        tape.gradients(loss)


def test_variable_that_loss_does_not_depend_on_may_have_other_parameters() -> None:
    """An example is a factor of a value that is only printed."""
    x = Variable(vector(3.0), name="x")
    with local_parameters():
        shown = Variable(vector(2.0), name="shown")
    with GradientTape() as tape:
        assert (Tensor(vector(1.0)) * shown).value.tolist() == [2.0]
        loss = total(read(x) * read(x))
    gradients = tape.gradients(loss)
    assert gradients.parameters is x.parameters
    SGD(1.0).apply_gradients(gradients)
    assert x.numpy().tolist() == [-3.0]


def test_shard_of_variable_trains_its_rows() -> None:
    variable = Variable(vector(3.0, 2.0, 1.0), name="x")
    part = new_handle(Variable, variable.spec, variable.parameters, 1, 3)
    frozen = new_handle(
        Variable, dataclasses.replace(variable.spec, trainable=False), variable.parameters, 1, 3
    )
    tensor = Tensor(vector(1.0, 1.0))
    assert (tensor * part).value.tolist() == [2.0, 1.0]
    for compute in (lambda: tensor * part, lambda: np.maximum(tensor, 2 * part)):
        with GradientTape() as tape:
            loss = np.sum(compute() * frozen + part.numpy())
        slices = tape.gradient(loss, part)  # type: ignore[arg-type]
        assert slices.indices.tolist() == [0, 1]
        assert slices.values.tolist() in ([2.0, 1.0], [4.0, 2.0])


def test_nested_tapes_both_record() -> None:
    x = Variable(vector(4.0), name="x")
    with GradientTape() as outer, GradientTape() as inner:
        loss = total(read(x) * 3.0)
    for tape in (outer, inner):
        np.testing.assert_allclose(tape.gradients(loss).of(x).gradient, [3.0])


def test_computation_without_tape_is_not_tracked() -> None:
    x = Variable(vector(4.0), name="x")
    assert not total(read(x)).tracked


def test_operation_may_return_no_gradient_for_an_input() -> None:
    x, y = Variable(vector(4.0), name="x"), Variable(vector(4.0), name="y")
    with GradientTape() as tape:
        a, b = read(x), read(y)
        loss = record(Tensor(a.value), (a, b), lambda grad: (grad, None))
    gradients = tape.gradients(loss)
    assert [update.variable.name for update in gradients] == ["x"]
    with pytest.raises(KeyError):
        gradients.of(y)


def test_gradient_of_lookup_leaf_carries_its_lookup() -> None:
    layer = Embedding(4, 1)
    (lookup,) = layer.parameters.fetch([Fetch(layer.variables[0].spec, np.array([2, 2]))])
    with GradientTape() as tape:
        rows = leaf(Tensor(lookup.rows), layer.variables[0], lookup)
        loss = total(rows)
    assert tape.gradients(loss).of(layer.variables[0]).lookup is lookup


def test_variable_can_be_assigned_tensor_under_tape() -> None:
    x, mean = Variable(vector(3.0, 2.0), name="x"), Variable(vector(0.0, 0.0), name="mean")
    with GradientTape():
        mean.assign(mean * 0.5 + read(x))
        mean.assign_add(read(x))
    assert mean.numpy().tolist() == [6.0, 4.0]


def test_metrics_accept_tracked_tensors() -> None:
    x = Variable(vector(0.2, 0.8), name="x")
    mean, auc = Mean(), AUC()
    with GradientTape():
        mean.update_state(read(x))
        auc.update_state([0.0, 1.0], read(x))
    assert float(mean.result()) == pytest.approx(0.5)
    assert float(auc.result()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "read", [lambda v: v * 2, lambda v: np.sum(v), lambda v: v[:1], lambda v: v.sparse_read([0])]
)
def test_trainable_variable_of_untrainable_dtype_is_refused_under_tape(
    read: Callable[[Variable], Any],
) -> None:
    for dtype in ("float64", "float16"):
        other = Variable(np.ones(2, dtype), name="other")
        assert np.all(read(other) >= 1)
        with GradientTape():
            with pytest.raises(InvalidArgumentError, match=f"'other' holds {dtype}.*dtype='float"):
                read(other)
            assert other.numpy().tolist() == [1, 1]
    with GradientTape():
        constant = Variable(np.ones(2), trainable=False)
        assert np.all(read(constant) >= 1)
