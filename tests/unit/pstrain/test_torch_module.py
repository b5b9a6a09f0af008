"""PyTorch modules as layers and models: gradients, composition, what is refused."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.serialization import pickling
from pstrain.trainer.context import trainer_scope
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pstrain.torch.layer import _begin_random_numbers  # noqa: E402
from tests.unit.pstrain.gradients.finite_differences import numeric_gradient, weighted_sum  # noqa: E402

RANDOM = np.random.default_rng(7)
SCHEMA = ps.FeatureSchema(dense=["a", "b"], categorical={"c": ps.Category(16)}, label="label")


@pytest.fixture(autouse=True)
def _seeded(own_parameters: None) -> None:  # noqa: ARG001
    torch.manual_seed(3)


def _rows(count: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    a, c = rng.normal(size=(count, 2)).astype(np.float32), rng.integers(0, 16, count)
    label = (a[:, 0] + (c % 2) > 0.5).astype(np.int64)
    return {"a": a[:, 0], "b": a[:, 1], "c": c, "label": label}


def _gradients_of(layer: Any, inputs: Any) -> dict[str, np.ndarray]:
    with ps.GradientTape() as tape:
        loss = weighted_sum(layer(inputs))
    return {update.variable.name: update.gradient for update in tape.gradients(loss)}


class _Recurrent(nn.Module):
    """A module of two inputs, with an LSTM, a scalar parameter, and a shared parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2, batch_first=True)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, sequence: Any, ids: Any) -> Any:
        hidden = self.lstm(sequence)[0][:, -1]
        return self.scale * self.second(torch.tanh(self.first(hidden))) + ids[:, None]


def test_torch_layer_gradients_match_finite_differences() -> None:
    layer = ps.torch.Layer(_Recurrent(), name="net")
    names = [variable.name for variable in layer.variables]
    assert "net/scale" in names
    assert "net/first.weight" in names
    assert "net/second.weight" not in names
    inputs = (RANDOM.normal(size=(4, 5, 3)).astype(np.float32), np.arange(4))
    found = _gradients_of(layer, inputs)
    assert sorted(found) == sorted(names)
    for variable in layer.variables:
        expected = numeric_gradient(variable, lambda: weighted_sum(layer(inputs)))
        np.testing.assert_allclose(
            found[variable.name].reshape(expected.shape), expected, atol=2e-3, rtol=2e-2
        )


def test_gradients_reach_layers_before_torch_module() -> None:
    table = ps.layers.Embedding([8, 8], 3)
    layer = ps.torch.Layer(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)))
    ids = RANDOM.integers(0, 8, (10, 2))
    with ps.GradientTape() as tape:
        loss = weighted_sum(layer(table(ids)))
    update = tape.gradients(loss).of(table.variables[0])
    rows = np.zeros((16, 3), np.float32)
    rows[update.lookup.unique] = update.gradient
    expected = numeric_gradient(table.variables[0], lambda: weighted_sum(layer(table(ids))))
    np.testing.assert_allclose(rows, expected, atol=2e-3)
    again = tape.gradients(loss).of(table.variables[0])
    np.testing.assert_array_equal(again.gradient, update.gradient)


def test_float64_inputs_are_converted_to_float32() -> None:
    table = ps.layers.Embedding([8, 8], 3)
    layer = ps.torch.Layer(nn.Linear(6, 1))
    inputs, ids = RANDOM.normal(size=(4, 6)), RANDOM.integers(0, 8, (4, 2))
    expected = layer(inputs.astype(np.float32)).value
    np.testing.assert_array_equal(layer(inputs).value, expected)
    with ps.GradientTape() as tape:
        wide = inputs * table(ids)
        loss = weighted_sum(layer(wide))
    assert wide.dtype == np.float64
    assert tape.gradients(loss).of(table.variables[0]).gradient.dtype == np.float32


def test_training_gives_same_weights_as_torch() -> None:
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    given = [value.detach().clone() for value in module.parameters()]
    schema = ps.FeatureSchema(dense=["a", "b"], label="label")
    model = ps.torch.Model(schema, module)
    model.compile(ps.optimizers.SGD(0.1), metrics=[ps.metrics.AUC()])
    rows = {name: values for name, values in _rows().items() if name != "c"}
    model.fit(rows, epochs=5, batch_size=16, verbose=0)
    for value, start in zip(module.parameters(), given, strict=True):
        assert torch.equal(value, start)

    rule = torch.optim.SGD(module.parameters(), 0.1)
    x = torch.from_numpy(np.stack([rows["a"], rows["b"]], axis=1))
    y = torch.from_numpy(rows["label"].astype(np.float32))
    for _ in range(5):
        for start in range(0, 64, 16):
            rule.zero_grad()
            part = slice(start, start + 16)
            nn.functional.binary_cross_entropy_with_logits(module(x[part]), y[part]).backward()
            rule.step()
    for mine, theirs in zip(model.get_weights(), module.parameters(), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), atol=1e-5)
    with torch.no_grad():
        expected = torch.sigmoid(module(x)).numpy()
        trained = torch.sigmoid(model.to_module()(x)).numpy()
    np.testing.assert_allclose(model.predict(rows), expected, atol=1e-5)
    np.testing.assert_allclose(trained, expected, atol=1e-5)


def test_torch_model_has_table_and_initializes_lazy_modules(tmp_path: Any) -> None:
    def made() -> Any:
        model = ps.torch.Model(SCHEMA, nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1)))
        model.compile(ps.optimizers.Adagrad(0.3), metrics=[ps.metrics.AUC()])
        return model

    model, rows = made(), _rows(512)
    assert [v.name for v in model.variables[:2]] == ["torch/table", "torch/module/0.weight"]
    assert model.variables[1].shape == (8, 18)
    model.fit(rows, epochs=15, batch_size=64, verbose=0)
    assert model.evaluate(rows, verbose=0)["auc"] > 0.95
    other = made()
    other.load_weights(model.save_weights(tmp_path))
    np.testing.assert_array_equal(other.predict(rows), model.predict(rows))
    with pytest.raises(UnimplementedError, match="load its weights"):
        ps.torch.Model.from_config(model.get_config())


def test_frozen_torch_parameters_are_not_trained() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    module[0].requires_grad_(False)
    module[1].eval()
    layer = ps.torch.Layer(module)
    found = _gradients_of(layer, np.ones((5, 2), np.float32))
    assert sorted(found) == ["torch/1.bias", "torch/1.weight", "torch/2.bias", "torch/2.weight"]


def test_unfreezing_torch_layer_keeps_frozen_parameters_frozen() -> None:
    layer = ps.torch.Layer(nn.Sequential(nn.Linear(6, 4).requires_grad_(False), nn.Linear(4, 1)))
    for trainable, trained in ((False, 0), (True, 2)):
        layer.trainable = trainable
        assert len(layer.trainable_variables) == trained
    with ps.GradientTape() as tape:
        loss = weighted_sum(layer(np.ones((2, 6), np.float32)))
    assert len(tape.gradients(loss)) == 2


def test_dropout_applies_in_training_only_and_follows_user_seed() -> None:
    layer = ps.torch.Layer(nn.Dropout(0.5))
    ones = np.ones((8, 8), np.float32)
    np.testing.assert_array_equal(layer(ones).value, ones)
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        with ps.GradientTape():
            drawn.append(layer(ones).value)
    assert set(np.unique(drawn[0])) == {0.0, 2.0}
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_each_trainer_draws_separate_continuing_random_numbers() -> None:
    layer = ps.torch.Layer(nn.Dropout(0.5), seed=1)
    ones = np.ones((8, 8), np.float32)

    def drawn(trainer: int) -> bytes:
        scope, step = trainer_scope(trainer), step_scope(StepToken("session", 1, 1))
        with scope, step, ps.GradientTape():
            return layer(ones).value.tobytes()

    _begin_random_numbers.cache_clear()
    first = [drawn(0), drawn(0), drawn(1)]
    assert len(set(first)) == 3
    _begin_random_numbers.cache_clear()
    assert [drawn(0), drawn(0), drawn(1)] == first


def test_pickled_torch_layer_contains_no_weights() -> None:
    module = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 1))
    module.register_buffer("steps", torch.arange(3))
    layer = ps.torch.Layer(module)
    parameters = layer.parameters
    sent = pickling.dumps(layer, lambda value: ("p",) if value is parameters else None)
    assert len(sent) < 20_000
    arrived = pickling.loads(sent, lambda _key: parameters)
    ones = np.ones((2, 300), np.float32)
    np.testing.assert_array_equal(arrived(ones).value, layer(ones).value)
    assert arrived.to_module().steps.tolist() == [0, 1, 2]
    pickle.dumps(layer.to_module())


def test_threads_run_torch_module_concurrently_with_separate_weights() -> None:
    layer = ps.torch.Layer(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)))
    values = [v.numpy() for v in layer.variables]
    inputs = RANDOM.normal(size=(16, 4)).astype(np.float32)
    expected = {scale: _forward(layer, values, inputs, scale) for scale in (1, 2, 3)}
    wrong: list[int] = []

    def work(scale: int) -> None:
        found = [_forward(layer, values, inputs, scale) for _ in range(100)]
        wrong.append(sum(not np.array_equal(each, expected[scale]) for each in found))

    threads = [threading.Thread(target=work, args=(scale,)) for scale in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == [0, 0, 0]


def _forward(layer: Any, values: list[np.ndarray], inputs: np.ndarray, scale: int) -> np.ndarray:
    with ps.GradientTape():
        return layer.forward([np.float32(scale) * value for value in values], inputs).value


def test_read_only_inputs_are_copied_for_torch() -> None:
    layer = ps.torch.Layer(nn.Linear(3, 1))
    inputs = np.ones((4, 3), np.float32)
    expected = layer(inputs).value
    inputs.flags.writeable = False
    np.testing.assert_array_equal(layer(inputs).value, expected)
    np.testing.assert_array_equal(layer(inputs[::-1]).value, expected)


class _CallCounter(nn.Module):
    def __init__(self, *, rebinds: bool) -> None:
        super().__init__()
        self.rebinds = rebinds
        self.linear = nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.rebinds:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize("rebinds", [False, True])
def test_module_that_changes_buffer_is_refused(rebinds: bool) -> None:
    layer = ps.torch.Layer(_CallCounter(rebinds=rebinds))
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=r"_CallCounter changes calls"):
            layer(np.ones((3, 2), np.float32))


def test_module_that_changes_its_input_in_place_is_refused() -> None:
    layer = ps.torch.Layer(nn.ReLU(inplace=True))
    with pytest.raises(InvalidArgumentError, match="changes input 0"):
        layer(np.ones((3, 2), np.float32))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"1 \(BatchNorm1d\).*LayerNorm"),
        (nn.Linear(2, 1).double(), r"weight is torch\.float64.*module\.float\(\)"),
        (nn.Linear(2, 1, device="meta"), r"weight is on meta.*module\.cpu\(\)"),
        (nn.LazyLinear(1), r"weight has no shape yet.*call the module once"),
        (np.ones, r"needs a torch\.nn\.Module, got"),
    ],
)
def test_torch_layer_refuses_unsupported_modules(module: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ps.torch.Layer(module, name="net")


class _Returning(nn.Module):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.weight, self.returned = nn.Parameter(torch.ones(1)), returned

    def forward(self, x: Any) -> Any:
        return self.returned(x)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(18, 2), r"one number for each row.*of 2 rows it made \(2, 2\)"),
        (nn.Linear(5, 1), r"does not take float32 \[n, 18\].*1 embeddings of 16.*2 dense"),
        (_Returning(lambda x: {"x": x}), r"one number for each row.*it made dict"),
        (nn.BatchNorm1d(18), r"the module \(BatchNorm1d\)"),
    ],
)
def test_torch_model_refuses_unsupported_modules(module: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ps.torch.Model(SCHEMA, module)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: (x, x), "must return one tensor, got tuple"),
        (lambda x: x.double(), r"must return float32, got torch\.float64"),
    ],
)
def test_torch_layer_refuses_unsupported_outputs(returned: Any, message: str) -> None:
    layer = ps.torch.Layer(_Returning(returned))
    with pytest.raises(InvalidArgumentError, match=message):
        layer(np.ones((3, 2), np.float32))


def test_torch_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no parameters to train"):
        ps.torch.Model(ps.FeatureSchema(dense=["a"], label="label"), nn.Identity())
