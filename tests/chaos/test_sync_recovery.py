"""In rounds, a loop that loses a parameter server ends with the same bits as one that does not."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from tests.chaos.counted_fit import columns

CLOSURES = 90
EVERY = 15


def train(
    cluster: ps.LocalCluster, directory: pathlib.Path, kill_at: dict[int, int]
) -> tuple[list[Any], int]:
    """Trains on two trainers; returns the values at the end and the number of restores."""
    strategy = ps.ParameterServerStrategy(cluster.resolver, consistency="sync")
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = ps.models.WideDeep(
            ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label"),
            dim=4,
            hidden=(8,),
        )
        optimizer = ps.optimizers.Adagrad(0.1)
    data = ds.Dataset.from_numpy(columns(1_000, with_ids=False)).batch(20).repeat()
    shares = strategy.experimental_distribute_dataset(data, ps.AutoShardPolicy.DATA)
    iterator = iter(coordinator.create_per_worker_dataset(shares))
    manager = ps.CheckpointManager(
        ps.Checkpoint(model=model, optimizer=optimizer, data=iterator), directory, 2
    )
    coordinator.recover_from(manager)
    manager.save()
    step = step_of(model, optimizer)
    for number in range(CLOSURES):
        coordinator.schedule(step, (iterator,))
        if number in kill_at:
            cluster.kill("ps", kill_at[number])
        if (number + 1) % EVERY == 0:  # EVERY is odd, so that rounds are not always full
            coordinator.join(90)
            if number % 2:
                manager.save()
    coordinator.join(90)
    values = [variable.numpy() for variable in model.variables]
    restores = coordinator.stats()["restores"]
    coordinator.close()
    return values, restores


def step_of(model: Any, optimizer: Any) -> Callable[[Any], float]:
    def step(batches: Any) -> float:
        with ps.GradientTape() as tape:
            loss = model.loss(next(batches))
        optimizer.apply_gradients(tape.gradients(loss))
        return float(loss)

    return step


@pytest.mark.long
def test_sync_training_is_bitwise_equal_although_servers_are_killed(tmp_path: pathlib.Path) -> None:
    with ps.LocalCluster(workers=2, ps=2, data_workers=0, supervise=True) as cluster:
        expected, none = train(cluster, tmp_path / "whole", {})
        found, restores = train(cluster, tmp_path / "lost", {25: 0, 70: 1})
    assert none == 0
    assert restores >= 1
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
