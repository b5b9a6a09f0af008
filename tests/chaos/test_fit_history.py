"""The history of ``fit`` over a data service is complete, and each epoch has its number of steps,
although trainers are killed between the steps of a closure.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.failpoints import KILL_AT_ENV
from tests.chaos.counted_fit import BATCH, Counting, dataset
from tests.waiting import wait_until

ROWS = 4_000
AT_ONCE = 8


class Examples(ps.metrics.Metric):
    """The number of examples."""

    def __init__(self) -> None:
        super().__init__("seen", (1,))

    def update(self, state: Any, labels: Any, probabilities: Any) -> Any:
        assert len(labels) == len(probabilities)
        state[0] += len(labels)
        return state

    def compute(self, state: Any) -> float:
        return float(state[0])


def compiled(cluster: ps.LocalCluster) -> Iterator[tuple[Counting, ps.ClusterCoordinator]]:
    strategy = ps.ParameterServerStrategy(
        cluster.resolver, variable_partitioner=ps.partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        model = Counting(ROWS)
        model.compile(ps.optimizers.SGD(0.1), metrics=[ps.metrics.AUC(), Examples()])
    coordinator = ps.ClusterCoordinator(strategy)
    yield model, coordinator
    coordinator.close()


def rows_of(cluster: ps.LocalCluster) -> ds.Dataset:
    return dataset(ROWS).distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)


@pytest.mark.parametrize("place", ["prepared", "decided"])
def test_history_has_steps_that_a_killed_trainer_did_not_report(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trainer is killed at its fifth commit, within its first closures of eight steps each.

    Both may be killed, as either may get the first rows; the trainers that replace them are not.
    """
    monkeypatch.setenv(KILL_AT_ENV, f"{place}:5")
    with ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster:
        del os.environ[KILL_AT_ENV]
        for model, coordinator in compiled(cluster):
            wait_until(lambda c=coordinator: c.live_trainers() == {0, 1}, "both trainers")
            history = model.fit(rows_of(cluster), steps_per_execution=AT_ONCE, verbose=0)
            assert coordinator.stats()["losses"] in (1, 2)
            model.check(epochs=1)
            assert history.history["examples"] == history.history["seen"] == [ROWS]
            assert np.isfinite(history.history["loss"]).all()


class KillTrainers(ps.callbacks.Callback):
    """Kills a trainer soon after the optimizer reaches each number of steps in ``after``.

    Steps that were applied but not reported yet count too.
    """

    def __init__(self, cluster: ps.LocalCluster, *after: int) -> None:
        self._cluster, self.after = cluster, list(after)
        self._chance = random.Random(3)

    def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        if self.after and int(self.model.optimizer.iterations) >= self.after[0]:
            self.after.pop(0)
            time.sleep(self._chance.random() * 0.02)
            self._cluster.kill("worker", self._chance.randrange(2))


def test_epochs_have_all_steps_although_trainers_are_killed() -> None:
    epochs, steps = 3, 45
    with ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster:
        for model, coordinator in compiled(cluster):
            kill = KillTrainers(cluster, 12, 60, 100)
            history = model.fit(
                rows_of(cluster),
                epochs,
                steps_per_epoch=steps,
                steps_per_execution=AT_ONCE,
                callbacks=[kill],
                verbose=0,
            )
            assert not kill.after
            assert coordinator.stats()["losses"] >= 1
            assert int(model.optimizer.iterations) == epochs * steps
            trained = int(model.counts.numpy().sum())
            assert sum(history.history["examples"]) == sum(history.history["seen"]) == trained
            assert trained <= epochs * steps * BATCH
            assert model.counts.numpy().max() == 1
