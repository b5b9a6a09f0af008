"""PyTorch modules on a real cluster: fit, and a loop of closures. Skipped without torch."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps

torch = pytest.importorskip("torch")

ROWS = 4_000
SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")


def clicks() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    page, price = rng.integers(0, 50, ROWS), rng.normal(size=ROWS).astype(np.float32)
    label = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    return {"page": page, "price": price, "label": label}


class Network(torch.nn.Module):
    """A module that is defined in this file, which no trainer can import."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(width, 16)
        self.dropout = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.dropout(torch.relu(self.hidden(x)))).squeeze(1)


@pytest.fixture(scope="module")
def strategy(cluster: ps.LocalCluster) -> Iterator[ps.ParameterServerStrategy]:
    strategy = ps.ParameterServerStrategy(
        cluster.resolver, variable_partitioner=ps.partitioners.FixedShardsPartitioner(2)
    )
    yield strategy
    ps.ClusterCoordinator(strategy).close()


def test_fit_trains_a_module_and_its_weights_load_in_one_process(
    strategy: ps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        model = ps.torch.Model(SCHEMA, Network(9), dim=8)
        model.compile(ps.optimizers.Adagrad(0.3), metrics=[ps.metrics.AUC()])
    data = ds.Dataset.from_numpy(clicks()).batch(100)
    model.fit(data, epochs=6, verbose=0)
    assert model.evaluate(clicks(), verbose=0)["auc"] > 0.8
    one_process = ps.torch.Model(SCHEMA, Network(9), dim=8)
    one_process.load_weights(model.save_weights(tmp_path))
    np.testing.assert_allclose(one_process.predict(clicks()), model.predict(clicks()), atol=1e-6)


def test_closures_train_an_embedding_and_a_module(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        table = ps.layers.Embedding(64, 8, name="pages")
        network = ps.torch.Layer(Network(8), name="network")
        optimizer = ps.optimizers.Adagrad(0.3)
    assert isinstance(network.variables[0], ps.ShardedVariable)
    loss_of = ps.losses.BinaryCrossentropy(from_logits=True)
    page = clicks()["page"]

    def step(start: int) -> tuple[float, int]:
        part = slice(start, start + 200)
        with ps.GradientTape() as tape:
            loss = loss_of(page[part] % 2, network(table(page[part])))
        optimizer.apply_gradients(tape.gradients(loss))
        return float(loss), torch.get_num_threads()

    reports = [
        coordinator.schedule(step, args=(start,)) for _ in range(5) for start in range(0, ROWS, 200)
    ]
    coordinator.join(timeout=60)
    losses, threads = zip(*coordinator.fetch(reports), strict=True)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert set(threads) == {1}


def test_a_device_that_a_trainer_lacks_fails_the_closure_there(
    strategy: ps.ParameterServerStrategy,
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        network = ps.torch.Layer(Network(8), name="elsewhere", device="cuda:99")
    assert {value.device.type for value in network.to_module().parameters()} == {"cpu"}
    coordinator.schedule(lambda: network(np.ones((4, 8), np.float32)).value)
    message = r"'elsewhere': trainer [01] cannot use device 'cuda:99'.*another device="
    with pytest.raises(ps.errors.FailedPreconditionError, match=message):
        coordinator.join(timeout=60)
