"""evaluate and predict over a cluster: exact and in order, although trainers die."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import InvalidArgumentError
from tests.waiting import wait_until

ROWS = 30_000
SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")


def clicks() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    page = rng.integers(0, 50, ROWS)
    price = rng.normal(size=ROWS).astype(np.float32)
    clicked = (page % 2 + 0.5 * price + 0.1 * rng.normal(size=ROWS) > 0.5).astype(np.int64)
    user = rng.integers(0, 900, ROWS)  # no feature; its rows are spread over all trainers
    weight = rng.random(ROWS)
    return {"page": page, "price": price, "label": clicked, "weight": weight, "user": user}


class KillAndRestartTrainer(ps.callbacks.Callback):
    """Kills a trainer in the middle of the pass, and restarts it later."""

    def __init__(self, cluster: ps.LocalCluster, kill_at: int = 3, restart_at: int = 10) -> None:
        self.cluster, self.calls = cluster, 0
        self.kill_at, self.restart_at = kill_at, restart_at

    def on_test_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.calls += 1
        if self.calls == self.kill_at:
            self.cluster.kill("worker", 0)
        if self.calls == self.restart_at:
            self.cluster.restart("worker", 0)

    def on_predict_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.on_test_batch_end(batch, logs)


def exact(logs: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in logs.items() if name != "examples_per_s"}


def test_evaluate_and_predict_are_exact_although_a_trainer_is_killed(
    cluster: ps.LocalCluster,
) -> None:
    columns = clicks()
    data = ds.Dataset.from_numpy(columns).batch(100)
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        model: Any = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
        weighted = [ps.metrics.AUC("weighted"), "precision", "log_loss"]
        by_user = ps.metrics.NDCG(5, group="user"), ps.metrics.GAUC(group="user")
        weighted.append(ps.metrics.GAUC(group="user", name="weighted_gauc"))
        model.compile("adagrad", metrics=[ps.metrics.AUC(), *by_user], weighted_metrics=weighted)
    model.fit(data, steps_per_epoch=50, verbose=0)
    # A trainer that is killed before it has joined would not count as lost.
    coordinator = ps.ClusterCoordinator(strategy)
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    options: dict[str, Any] = {"verbose": 0, "sample_weight": "weight"}
    here = model.evaluate(data, distributed=False, **options)
    assert here["examples"] == ROWS
    kill = KillAndRestartTrainer(cluster)
    there = model.evaluate(data, steps_per_execution=4, callbacks=[kill], **options)
    assert kill.calls == 75
    # Whether it held closures when it died is chance; that it counts as lost is not.
    wait_until(lambda: coordinator.stats()["losses"] > 0, "the loss to be counted")
    assert exact(there) == exact(here)
    assert there["weighted"] != there["auc"]
    assert there["weighted_gauc"] != there["gauc"]
    # A call of 150 steps ends before: it collects as many rows for metrics as its report holds.
    kill = KillAndRestartTrainer(cluster, kill_at=1, restart_at=2)
    long = model.evaluate(data, steps_per_execution=150, callbacks=[kill], **options)
    assert exact(long) == exact(here)
    assert kill.calls > 300 / 150
    part = model.evaluate(data, steps=10, steps_per_execution=4, **options)
    assert exact(part) == exact(
        model.evaluate({n: c[:1000] for n, c in columns.items()}, batch_size=100, **options)
    )

    expected = model.predict(data, distributed=False)
    kill = KillAndRestartTrainer(cluster)
    found = model.predict(data, steps_per_execution=4, callbacks=[kill])
    assert kill.calls == 75
    np.testing.assert_array_equal(found, expected)
    for metric in by_user:
        metric.update_state(columns["label"], expected, groups=columns["user"])
        assert metric.result() == here[metric.name]
    coordinator.close()


def test_regression_is_trained_and_evaluated_exactly_although_a_trainer_is_killed(
    cluster: ps.LocalCluster,
) -> None:
    columns = clicks()
    columns["label"] = 2.0 * columns["price"] + columns["page"] % 7 - 3.0
    local = ds.Dataset.from_numpy(columns).batch(100)
    shared = local.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        model: Any = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
        weighted = [ps.metrics.MeanAbsoluteError("weighted")]
        rule = ps.optimizers.Adagrad(0.1)
        model.compile(rule, metrics=["mse", "rmse"], weighted_metrics=weighted, loss="mse")
    coordinator = ps.ClusterCoordinator(strategy)
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    history = model.fit(shared, epochs=3, validation_data=local, verbose=0).history
    assert history["examples"] == [ROWS] * 3
    assert history["mse"] == [pytest.approx(loss, rel=1e-5) for loss in history["loss"]]
    assert history["val_loss"][-1] < 0.3 * np.var(columns["label"])
    options: dict[str, Any] = {"verbose": 0, "sample_weight": "weight"}
    here = model.evaluate(local, distributed=False, **options)
    kill = KillAndRestartTrainer(cluster)
    there = model.evaluate(local, steps_per_execution=4, callbacks=[kill], **options)
    assert exact(there) == exact(here)
    predicted = model.predict(local)
    np.testing.assert_array_equal(predicted, model.predict(local, distributed=False))
    errors = predicted.astype(np.float64) - columns["label"].astype(np.float32)
    assert here["mse"] == history["val_mse"][-1] == pytest.approx(np.mean(errors**2), rel=1e-12)

    def step(batch: dict[str, np.ndarray]) -> float:
        with ps.GradientTape() as tape:
            loss = model.loss(batch)
        model.optimizer.apply_gradients(tape.gradients(loss))
        return float(loss)

    batch = {name: column[:100] for name, column in columns.items()}
    found = coordinator.schedule(step, args=(batch,)).fetch()
    assert found == pytest.approx(np.mean(errors[:100] ** 2), rel=1e-5)
    model.compile(rule, loss="mae")
    expected = float(model.loss(batch))
    assert coordinator.schedule(step, args=(batch,)).fetch() == pytest.approx(expected, rel=1e-5)
    coordinator.close()


def test_metrics_by_group_are_exact_over_a_data_service_and_in_a_loop(
    cluster: ps.LocalCluster,
) -> None:
    columns = clicks()
    local = ds.Dataset.from_numpy(columns).batch(100)
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    shared = local.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
    with strategy.scope():
        model: Any = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
        gauc = ps.metrics.GAUC(group="user")
        model.compile("adagrad", metrics=[gauc])
    history = model.fit(local, validation_data=shared, verbose=0).history
    here = model.evaluate(local, distributed=False, verbose=0)
    assert history["val_gauc"] == [here["gauc"]]
    assert "gauc" not in history

    def step(iterator: Any) -> Any:
        state = gauc.initial_state()
        for batch in iterator:
            label, user = batch["label"], batch["user"]
            state = gauc.update(state, label, model.predict_on_batch(batch), groups=user)
        return state

    coordinator = ps.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda _: local.take(100)))
    for trainer in (0, 1):
        value = coordinator.schedule(step, args=(iterator,), trainer=trainer)
        gauc.add_state(value.fetch())
    part = model.evaluate(local.take(100), distributed=False, verbose=0)
    # Each trainer has evaluated the same rows: an area is the same for rows that occur twice.
    assert gauc.result() == pytest.approx(part["gauc"], rel=1e-12)
    coordinator.close()


def test_distributed_evaluate_of_single_process_model_is_refused() -> None:
    model = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
    with pytest.raises(InvalidArgumentError, match="scope"):
        model.evaluate(clicks(), distributed=True)
