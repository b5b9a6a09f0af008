"""Torch modules on a GPU: the same numbers as on the processor, alone and in a cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.trainer.context import trainer_scope
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
from torch import nn  # noqa: E402

from pstrain.torch.layer import _begin_random_numbers  # noqa: E402

# Torch's own threads warn of this at their first product on a GPU, whatever the program did before.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")

ROWS = 4_000
SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")
RANDOM = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    """Turns off the formats in which a GPU multiplies with fewer bits than float32 has."""
    given = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = given


def clicks() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    page, price = rng.integers(0, 50, ROWS), rng.normal(size=ROWS).astype(np.float32)
    label = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    return {"page": page, "price": price, "label": label}


class Network(nn.Module):
    """A module with dropout, which is defined in this file: no trainer can import it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(width, 16), nn.Linear(16, 1)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        return self.out(self.dropout(torch.relu(self.hidden(x)))).squeeze(1)


class TwoInputs(nn.Module):
    """A module with two inputs, ids among them, a buffer, a shared and a frozen parameter."""

    buffers_seen: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.words = nn.Embedding(10, 6)
        self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 1).requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Any, ids: Any) -> Any:
        self.buffers_seen.append(self.scale.data_ptr())
        hidden = torch.tanh(self.first(x)) + self.words(ids)
        return self.out(self.norm(self.second(hidden)) * self.scale)


def _gradients(layer: Any, table: Any, fields: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
    with ps.GradientTape() as tape:
        output = layer((table(fields), ids))
        loss = np.sum(output * output)
    found = {update.variable.name: update.gradient for update in tape.gradients(loss)}
    return found | {"output": output.value}


@pytest.mark.usefixtures("own_parameters")
def test_gradients_are_those_of_the_processor() -> None:
    torch.manual_seed(3)
    module = TwoInputs()
    TwoInputs.buffers_seen.clear()
    fields, ids = RANDOM.integers(0, 8, (32, 2)), RANDOM.integers(0, 10, 32)
    table = ps.layers.Embedding([8, 8], 3, name="table")
    layers = [ps.torch.Layer(module, name="net", device=device) for device in (None, "cuda")]
    expected, found = (_gradients(layer, table, fields, ids) for layer in layers)
    assert found.keys() == expected.keys() > {"table", "net/words.weight", "net/first.weight"}
    for name, value in expected.items():
        assert isinstance(found[name], np.ndarray)
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, atol=1e-4, rtol=1e-4, err_msg=name)
    _gradients(layers[1], table, fields, ids)
    # The first call was on the processor; those on the GPU share one copy of the buffer there.
    assert len(TwoInputs.buffers_seen) == 3
    assert len(set(TwoInputs.buffers_seen[1:])) == 1
    np.testing.assert_allclose(layers[1]((table(fields), ids)).value, expected["output"], atol=1e-4)
    assert layers[1].to_module().scale.device.type == "cpu"


@pytest.mark.usefixtures("own_parameters")
def test_each_trainer_draws_its_own_numbers_on_a_gpu() -> None:
    layer = ps.torch.Layer(nn.Dropout(0.5), seed=1, device="cuda")
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


@pytest.mark.usefixtures("own_parameters")
def test_a_module_that_changes_its_input_on_a_gpu_is_refused() -> None:
    layer = ps.torch.Layer(nn.ReLU(inplace=True), device="cuda")
    with pytest.raises(ps.errors.InvalidArgumentError, match="changes input 0"):
        layer(np.ones((3, 2), np.float32))


@pytest.mark.usefixtures("own_parameters")
@pytest.mark.filterwarnings("ignore:RNN module weights")
def test_a_recurrent_module_on_a_gpu_makes_the_numbers_of_the_processor() -> None:
    torch.manual_seed(3)
    module = nn.LSTM(3, 4, batch_first=True)
    last = nn.Sequential(module, _Last())
    inputs = RANDOM.normal(size=(8, 5, 3)).astype(np.float32)
    expected, found = (
        _weight_gradients(ps.torch.Layer(last, name="net", device=device), inputs)
        for device in (None, "cuda")
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-4, rtol=1e-4, err_msg=name)


class _Last(nn.Module):
    def forward(self, outputs: Any) -> Any:
        return outputs[0][:, -1]


def _weight_gradients(layer: Any, inputs: np.ndarray) -> dict[str, np.ndarray]:
    with ps.GradientTape() as tape:
        output = layer(inputs)
        loss = np.sum(output * output)
    return {update.variable.name: update.gradient for update in tape.gradients(loss)}


@pytest.fixture(scope="module")
def strategy() -> Iterator[ps.ParameterServerStrategy]:
    with ps.LocalCluster(workers=2, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        yield strategy
        ps.ClusterCoordinator(strategy).close()


def test_two_trainers_fit_on_gpus_and_a_run_on_the_processor_goes_on(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        model = ps.torch.Model(SCHEMA, Network(9), dim=8, device="cuda")
        model.compile(ps.optimizers.Adagrad(0.3), metrics=[ps.metrics.AUC()])
    data = ds.Dataset.from_numpy(clicks()).batch(100)
    losses = model.fit(data, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    results = model.evaluate(clicks(), verbose=0)
    assert results["auc"] > 0.8
    predicted = model.predict(clicks())
    path = ps.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path)

    alone = ps.torch.Model(SCHEMA, Network(9), dim=8)
    alone.compile(ps.optimizers.Adagrad(0.3), metrics=[ps.metrics.AUC()])
    ps.Checkpoint(model=alone, optimizer=alone.optimizer).restore(path)
    np.testing.assert_allclose(alone.predict(clicks()), predicted, atol=1e-4)
    restored = alone.evaluate(clicks(), verbose=0)
    assert restored["loss"] == pytest.approx(results["loss"], abs=1e-3)
    assert alone.fit(data, epochs=1, verbose=0).history["loss"][0] < losses[0]


def test_closures_compute_on_a_gpu_of_their_trainer(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        table = ps.layers.Embedding(64, 8, name="pages")
        network = ps.torch.Layer(Network(8), name="network", device="cuda")
        optimizer = ps.optimizers.Adagrad(0.3)
    loss_of = ps.losses.BinaryCrossentropy(from_logits=True)
    page = clicks()["page"]

    def step(start: int) -> tuple[float, int, int]:
        part = slice(start, start + 200)
        with ps.GradientTape() as tape:
            loss = loss_of(page[part] % 2, network(table(page[part])))
        optimizer.apply_gradients(tape.gradients(loss))
        index = ps.get_current_worker_index() % torch.cuda.device_count()
        return float(loss), index, torch.cuda.max_memory_allocated(index)

    reports = [
        coordinator.schedule(step, args=(start,)) for _ in range(5) for start in range(0, ROWS, 200)
    ]
    coordinator.join(timeout=120)
    losses, _, memory = zip(*coordinator.fetch(reports), strict=True)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert min(memory) > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_pins_batches_for_transfers_that_overlap(num_workers: int) -> None:
    from torch.utils.data import DataLoader

    columns = {"x": np.arange(60), "v": np.ones((60, 2), np.float32), "s": np.array(["a"] * 60)}
    data = ds.Dataset.from_numpy(columns).batch(5)
    context = {"multiprocessing_context": "spawn", "timeout": 60} if num_workers else {}
    loader = DataLoader(
        data.torch(), batch_size=None, num_workers=num_workers, pin_memory=True, **context
    )
    rows = []
    for batch in loader:
        assert batch["x"].is_pinned()
        assert batch["v"].is_pinned()
        assert list(batch["s"]) == ["a"] * 5
        moved = batch["x"].to("cuda", non_blocking=True)
        rows += moved.tolist()
    assert sorted(rows) == list(range(60))
