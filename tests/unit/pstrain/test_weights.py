"""A model's values as arrays, its summary, and an optimizer whose rate is set."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.serialization import pickling
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken

pytestmark = pytest.mark.usefixtures("own_parameters")

SCHEMA = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(4, hashed=False)})


def test_weights_are_read_set_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    first, second = (ps.models.WideDeep(SCHEMA, dim=3, hidden=(4,), seed=k) for k in (1, 2))
    second.set_weights(first.get_weights())
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    first.variables[0].assign(1.0)
    path = first.save_weights(tmp_path)
    assert second.load_weights(path) == path
    assert (second.variables[0].numpy() == 1.0).all()
    with pytest.raises(InvalidArgumentError, match="2 arrays"):
        first.set_weights([1, 2])
    wrong = [np.zeros(9), *first.get_weights()[1:]]
    with pytest.raises(InvalidArgumentError, match=r"shape \(9,\)"):
        first.set_weights(wrong)


def test_weights_of_a_layer_are_read_and_set_by_keras_names() -> None:
    first, second = (ps.layers.Dense(2, input_size=3, seed=k) for k in (1, 2))
    assert first.kernel is first.weights[0]
    assert first.bias is first.weights[1]
    second.set_weights(first.get_weights())
    for mine, theirs in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(InvalidArgumentError, match=r"1 arrays for 2 variables: .*dense/kernel"):
        first.set_weights([np.zeros((3, 2))])
    with pytest.raises(InvalidTypeError, match=r"as get_weights\(\) returns, got Dense"):
        first.set_weights(second)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"2 arrays, but .*no variables yet: call it"):
        ps.layers.Dense(2).set_weights(first.get_weights())
    assert first.count_params() == 8
    first.trainable = False
    assert first.trainable_weights == []
    assert first.non_trainable_weights == first.non_trainable_variables == first.variables
    table = ps.layers.Embedding([4, 6], 2)
    assert table.embeddings is table.weights[0]


def test_layer_without_variables_says_how_to_make_its_kernel() -> None:
    layer = ps.layers.Dense(2)
    for name in ("kernel", "bias"):
        with pytest.raises(AttributeError, match=rf"'{name}': the layer has no.* input_size="):
            getattr(layer, name)
    assert not hasattr(layer, "kernel")
    layer([[1.0, 2.0]])
    assert tuple(layer.kernel.shape) == (2, 2)
    assert ps.layers.Dense(1, use_bias=False, input_size=1).bias is None


def test_layer_of_a_model_is_found_by_name_and_place() -> None:
    model = ps.models.WideDeep(SCHEMA, dim=3, hidden=(4,))
    named = model.layers[-1]
    assert model.get_layer(named.name) is model.get_layer(index=-1) is named
    with pytest.raises(ValueError, match=rf"no layer 'deep' in .*{named.name}"):
        model.get_layer("deep")
    with pytest.raises(ValueError, match="no layer 9 in"):
        model.get_layer(index=9)
    with pytest.raises(ValueError, match="a name or an index"):
        model.get_layer()


def test_summary_lists_every_variable() -> None:
    lines: list[str] = []
    model = ps.models.WideDeep(SCHEMA, dim=3, hidden=(4,))
    model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert all(variable.name in text for variable in model.variables)
    assert f"{model.count_params():,} values" in text
    assert model.count_params() == sum(v.numpy().size for v in model.variables)


def test_learning_rate_can_be_assigned_in_program_only() -> None:
    variable, optimizer = ps.Variable([0.0]), ps.optimizers.SGD(1.0)
    optimizer.apply_gradients([([1.0], variable)])
    before = pickling.capture_generation()
    optimizer.learning_rate = 0.25
    assert pickling.capture_generation() != before
    optimizer.apply_gradients([([1.0], variable)])
    assert variable.numpy().tolist() == [-1.25]
    assert (optimizer.learning_rate, int(optimizer.iterations)) == (0.25, 2)
    optimizer.learning_rate = ps.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer.apply_gradients([([1.0], variable)])
    assert variable.numpy().tolist() == [-1.5]
    assert isinstance(optimizer.get_config()["learning_rate"], dict)
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        optimizer.learning_rate = -1.0
    with (
        step_scope(StepToken("s", 0, 0)),
        pytest.raises(FailedPreconditionError, match="program"),
    ):
        optimizer.learning_rate = 0.1


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    category = rng.integers(0, 4, 64)
    return {"x": rng.normal(size=64), "c": category, "label": category % 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.models.WideDeep(SCHEMA, dim=8, hidden=(16,)),
        lambda: ps.models.DCNv2(SCHEMA, dim=3, hidden=(4,), rank=2),
        lambda: ps.models.DeepFM(SCHEMA, dim=4, hidden=(4,)),
    ],
)
def test_frozen_layers_are_not_trained_until_unfrozen(make: Any) -> None:
    model = make()
    model.compile("adam")
    model.layers[0].trainable = model.layers[1].trainable = False
    frozen = [*model.layers[0].variables, *model.layers[1].variables]
    assert not any(variable.trainable for variable in frozen)
    assert len(model.trainable_variables) == len(model.variables) - len(frozen)
    before = {variable.name: variable.numpy() for variable in model.variables}
    model.fit(_rows(), verbose=0)
    names = {variable.name for variable in frozen}
    for variable in model.variables:
        is_same = np.array_equal(variable.numpy(), before[variable.name])
        assert is_same == (variable.name in names), variable.name
    model.trainable = True
    model.fit(_rows(), verbose=0)
    for variable in model.variables:
        assert not np.array_equal(variable.numpy(), before[variable.name]), variable.name


def test_trainable_and_non_trainable_weights_follow_keras_names() -> None:
    model = ps.models.WideDeep(SCHEMA, dim=4, hidden=(4,))
    model.layers[1].trainable = False
    names = [variable.name for variable in model.non_trainable_weights]
    assert names == ["wide_deep/deep_0/kernel", "wide_deep/deep_0/bias"]
    assert len(model.trainable_weights) + len(names) == len(model.weights)
    with pytest.raises(InvalidArgumentError, match=r"training=True, .* here is none\."):
        model(_rows(), training=True)


def test_layer_frozen_before_build_creates_frozen_variables() -> None:
    layer = ps.layers.Dense(2)
    layer.trainable = False
    before = pickling.capture_generation()
    layer(np.ones((3, 4)))
    assert layer.trainable_variables == []
    layer.trainable = True
    assert pickling.capture_generation() != before, "trainers would go on with the layer as it was"
    assert len(layer.trainable_variables) == 2


def test_fit_of_fully_frozen_model_is_refused(tmp_path: pathlib.Path) -> None:
    model = ps.models.LogisticRegression(SCHEMA)
    model.compile("sgd")
    model.trainable = False
    assert not model.trainable
    assert model.load_weights(model.save_weights(tmp_path))
    with pytest.raises(InvalidArgumentError, match="depends on no trainable variable"):
        model.fit(_rows(), verbose=0)
    with pytest.raises(InvalidTypeError, match="trainable"):
        model.layers[0].trainable = "no"
