"""evaluate and predict over a cluster: exact and in order, although trainers die."""

from __future__ import annotations

import pathlib
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
    return {"page": page, "price": price, "label": clicked, "weight": rng.random(ROWS)}


class KillAndRestartTrainer(ps.callbacks.Callback):
    """Kills a trainer in the middle of the pass, and restarts it later."""

    def __init__(self, cluster: ps.LocalCluster) -> None:
        self.cluster, self.calls = cluster, 0

    def on_test_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.calls += 1
        if self.calls == 3:
            self.cluster.kill("worker", 0)
        if self.calls == 10:
            self.cluster.restart("worker", 0)

    def on_predict_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.on_test_batch_end(batch, logs)


def exact(logs: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in logs.items() if name != "examples_per_s"}


def test_evaluate_and_predict_are_exact_although_a_trainer_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    columns = clicks()
    data = ds.Dataset.from_numpy(columns).batch(100)
    with ps.LocalCluster(workers=2, ps=2, data_workers=0, log_dir=tmp_path) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        with strategy.scope():
            model: Any = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
            weighted = [ps.metrics.AUC("weighted"), "precision", "log_loss"]
            model.compile("adagrad", metrics=[ps.metrics.AUC()], weighted_metrics=weighted)
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
        part = model.evaluate(data, steps=10, steps_per_execution=4, **options)
        assert exact(part) == exact(
            model.evaluate({n: c[:1000] for n, c in columns.items()}, batch_size=100, **options)
        )

        expected = model.predict(data, distributed=False)
        kill = KillAndRestartTrainer(cluster)
        found = model.predict(data, steps_per_execution=4, callbacks=[kill])
        assert kill.calls == 75
        np.testing.assert_array_equal(found, expected)
        coordinator.close()


def test_distributed_evaluate_of_single_process_model_is_refused() -> None:
    model = ps.models.WideDeep(SCHEMA, dim=4, hidden=(8,))
    with pytest.raises(InvalidArgumentError, match="scope"):
        model.evaluate(clicks(), distributed=True)
