"""Models that users write: of layers, of variables, and of whatever attributes hold."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.errors import FailedPreconditionError, InvalidTypeError
from pstrain.features.schema import Category, Features, FeatureSchema
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers import Dense, Embedding, Layer, OnlineLookup, concatenate
from pstrain.metrics import AUC
from pstrain.models import Model
from pstrain.optimizers import SGD
from pstrain.variables.variable import ShardedVariable, Variable

pytestmark = pytest.mark.usefixtures("own_parameters")

SCHEMA = FeatureSchema(dense=["x"], categorical={"c": Category(5, hashed=False)})


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    c = rng.integers(0, 5, 64)
    return {"x": rng.normal(size=64), "c": c, "label": c % 2}


class Scaled(Model):
    """A model with one listed layer, another in a nested list, and single and joined variables."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self.table = Embedding(self.schema.vocabulary_sizes, 3, name="table")
        self.rest = [{"out": Dense(1, input_size=4, name="out")}]
        self.scale = Variable(0.5, name="scale")
        halves = [Variable(np.ones((1, 1), np.float32), name=f"half_{k}") for k in range(2)]
        self.halves = ShardedVariable(halves)
        self.lookup = OnlineLookup(8, name="lookup")
        self.area = AUC()
        self.layers = [self.table]

    def compute(self, values: Sequence[Any], features: Features) -> Tensor:
        embedded = concatenate([self.table.forward(values[0], features), features.dense])
        product: Tensor = self.rest[0]["out"](embedded) * self.scale
        return product + np.sum(self.halves * 2.0)


NAMES = ["table", "out/kernel", "out/bias", "scale", "half_0", "half_1", "lookup"]


def test_model_variables_include_layers_and_variables_in_attributes(tmp_path: pathlib.Path) -> None:
    model = Scaled(SCHEMA)
    assert [variable.name.split("/keys")[0] for variable in model.variables] == NAMES
    with GradientTape() as tape:
        loss = model.loss(_rows())
    trained = {update.variable.name for update in tape.gradients(loss)}
    assert trained == {variable.name for variable in model.trainable_variables}
    model.compile("adam")
    model.fit(_rows(), epochs=2, verbose=0)
    assert float(model.scale) != 0.5
    again = Scaled(SCHEMA)
    again.load_weights(model.save_weights(tmp_path))
    np.testing.assert_array_equal(again.predict(_rows()), model.predict(_rows()))
    assert float(again.scale) == float(model.scale)


class Net(Layer):
    """A layer of other layers and a variable of its own, none of which it fetches itself."""

    def __init__(self) -> None:
        super().__init__("net")
        self.inner = [Dense(4, "relu", input_size=3, name="a"), Dense(2, input_size=4, name="b")]
        self.scale = Variable(np.ones(2, np.float32), name="scale")

    def forward(self, values: Sequence[Any], inputs: Any) -> Any:  # noqa: ARG002
        return self.inner[1](self.inner[0](inputs)) * self.scale


def test_nested_layer_can_be_called_trained_and_saved(tmp_path: pathlib.Path) -> None:
    net, inputs = Net(), np.ones((5, 3), np.float32)
    before = np.asarray(net(inputs))
    for _ in range(3):
        with GradientTape() as tape:
            loss = np.mean(net(inputs) ** 2)
        SGD(0.1).apply_gradients(tape.gradients(loss))
    after = np.asarray(net(inputs))
    assert np.abs(after).sum() < np.abs(before).sum()
    again = Net()
    Checkpoint(net=again).restore(Checkpoint(net=net).save(tmp_path))
    np.testing.assert_array_equal(np.asarray(again(inputs)), after)


def test_trainable_false_freezes_variables_in_attributes() -> None:
    net, model = Net(), Scaled(SCHEMA)
    for each, count in ((net, 5), (model, 6)):
        trained = len(_trained(each))
        each.trainable = False
        assert len(_trained(each)) == trained - count
        each.trainable = True
        assert len(_trained(each)) == trained
    net.inner[0].trainable = False
    assert [variable.name for variable in _trained(net)] == ["b/kernel", "b/bias", "scale"]


def test_apply_gradients_reaches_variables_of_nested_layers() -> None:
    net, inputs = Net(), np.ones((5, 3), np.float32)
    before = [variable.numpy() for variable in net.weights]
    with GradientTape() as tape:
        loss = np.mean((net(inputs) - 3) ** 2)
    variables = net.trainable_variables
    SGD(0.1).apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    after = [variable.numpy() for variable in net.weights]
    assert len(before) == 5
    assert all(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def _trained(of: Any) -> list[Any]:
    return list(of.trainable_variables)


class Linear(Model):
    """A model of one variable, without layers."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self.weights_of_columns = Variable(np.zeros((1, 1), np.float32), name="weights")

    def compute(self, values: Sequence[Any], features: Features) -> Any:  # noqa: ARG002
        return features.dense @ self.weights_of_columns


def test_model_with_variables_and_without_layers_trains() -> None:
    model = Linear(SCHEMA)
    rows = _rows()
    rows["label"] = (rows["x"] > 0).astype(np.int64)
    model.compile("adam", metrics=["auc"])
    assert model.fit(rows, epochs=3, batch_size=8, verbose=0).history["auc"][-1] > 0.9
    assert model.evaluate(rows, verbose=0)["auc"] == 1.0
    assert isinstance(model(rows), Tensor)


class Empty(Linear):
    def __init__(self, schema: Any) -> None:
        Model.__init__(self, schema)


def test_model_without_variables_is_refused_with_remedy() -> None:
    with pytest.raises(FailedPreconditionError, match=r"Empty has no variables: .*self\.layers"):
        Empty(SCHEMA).predict(_rows())


def test_layer_and_model_with_keras_methods_are_told_what_to_write() -> None:
    methods = {"call": lambda _self, inputs: inputs}
    with pytest.raises(InvalidTypeError, match=r"layer Twice overrides call.* write forward\("):
        type("Twice", (Layer,), methods)
    with pytest.raises(InvalidTypeError, match=r"model Net overrides call.* write compute\("):
        type("Net", (Model,), methods)
    type("Both", (Layer,), methods | {"forward": lambda _self, _values, inputs: inputs})
