"""Stale synchronous and synchronous training on real trainers and parameter servers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.checkpoints import manifest
from pstrain.errors import FailedPreconditionError
from pstrain.paramserver import safetensors

DEADLINE_S = 60.0
ROWS, BATCH = 512, 16


def data(rows: int = ROWS) -> ds.Dataset:
    chance = np.random.default_rng(3)
    ids = chance.integers(0, 40, rows)
    values = chance.normal(size=(rows,)).astype(np.float32)
    table = {"user": ids, "x": values, "click": (values + ids % 3 > 1).astype(np.int64)}
    return ds.Dataset.from_numpy(table).batch(BATCH, drop_remainder=True)


class Program:
    """A model whose variables have two shards, and a counter of rows, trained on ``data``."""

    def __init__(self, resolver: Any, consistency: Any, **options: Any) -> None:
        self.strategy = ps.ParameterServerStrategy(
            resolver,
            variable_partitioner=ps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
            **options,
        )
        self.coordinator = ps.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            schema = ps.FeatureSchema(
                dense=("x",), categorical={"user": ps.Category(40, hashed=False)}, label="click"
            )
            self.model = ps.models.WideDeep(schema, dim=4, hidden=(8,), seed=1)
            self.optimizer = ps.optimizers.Adagrad(0.1)
            self.rows = ps.Variable(0, name="rows")
        dataset = self.strategy.experimental_distribute_dataset(data())
        self.data = iter(self.coordinator.create_per_worker_dataset(dataset))

    def train(self, steps: int) -> None:
        model, optimizer, rows = self.model, self.optimizer, self.rows

        def step(iterator: Any) -> float:
            batch = next(iterator)
            with ps.GradientTape() as tape:
                loss = model.loss(batch)
            optimizer.apply_gradients(tape.gradients(loss))
            rows.assign_add(batch.num_rows)
            return float(loss)

        for _ in range(steps):
            self.coordinator.schedule(step, args=(self.data,))
        self.coordinator.join(DEADLINE_S)

    def checkpoint(self) -> ps.Checkpoint:
        return ps.Checkpoint(
            model=self.model, optimizer=self.optimizer, rows=self.rows, data=self.data
        )


@contextlib.contextmanager
def program(resolver: Any, consistency: Any, **options: Any) -> Iterator[Program]:
    made = Program(resolver, consistency, **options)
    try:
        yield made
    finally:
        made.coordinator.close()


def contents(path: str) -> dict[str, bytes]:
    """Returns all values and slots of a checkpoint."""
    found = {file.name: file.read_bytes() for file in pathlib.Path(path).rglob("*.arrow")}
    for file in pathlib.Path(path).rglob("*.safetensors"):
        tensors = safetensors.read(np.fromfile(file, np.uint8), file.name)
        found |= {name: tensor.tobytes() for name, tensor in tensors.items()}
    return found


def test_sync_runs_are_bitwise_equal_also_across_resume(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    finals = []
    for name in ("first", "second"):
        with program(cluster.resolver, "sync") as made:
            assert made.strategy.num_replicas_in_sync == 2
            made.train(13)
            made.train(7)
            assert made.coordinator.stats()["rounds"] == 7 + 4
            assert int(made.optimizer.iterations) == 11
            assert int(made.rows) == 20 * BATCH
            finals.append(contents(made.checkpoint().save(tmp_path / name)))
    assert len(finals[0]) > 6
    assert finals[0] == finals[1]
    with program(cluster.resolver, "sync") as made:
        made.train(13)
        middle = made.checkpoint().save(tmp_path / "middle")
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=0) as other,
        program(other.resolver, ps.consistency.sync()) as made,
    ):
        made.checkpoint().restore(middle)
        made.train(7)
        path = made.checkpoint().save(tmp_path / "resumed")
        assert contents(path) == finals[0]
        assert manifest.read(path)["consistency"] == {"name": "sync", "backup_workers": 0}


def test_sync_fit_gives_equal_weights_each_time(cluster: ps.LocalCluster) -> None:
    weights = []
    for dtype in ("float32", "float32", "bfloat16", "bfloat16"):
        with program(cluster.resolver, "sync", transport_dtype=dtype) as made:
            made.model.compile(optimizer=made.optimizer)
            made.model.fit(data(160), epochs=2, verbose=0)
            assert int(made.optimizer.iterations) == 2 * 160 // BATCH // 2
            weights.append(made.model.get_weights())
    exact, again, rounded, rounded_again = weights
    for one, other in zip(exact + rounded, again + rounded_again, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(exact, rounded, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
        assert (one != other).any()


class _SlowSaves(ps.callbacks.Callback):
    """Saves once the trainers have run all scheduled closures, even in the middle of a round."""

    def __init__(self, coordinator: ps.ClusterCoordinator, manager: ps.CheckpointManager) -> None:
        self._coordinator, self._manager = coordinator, manager

    def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        if batch % 3:
            return
        ended, deadline_s = -1, time.monotonic() + DEADLINE_S
        while (now := self._coordinator.stats()["finished"]) > ended:
            ended = now
            time.sleep(0.1)
            assert time.monotonic() < deadline_s
        self._manager.save()


def test_save_does_not_end_a_sync_round_early(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    weights = []
    for saves in (False, True):
        with program(cluster.resolver, "sync") as made:
            made.model.compile(optimizer=made.optimizer)
            manager = ps.CheckpointManager(ps.Checkpoint(model=made.model), tmp_path, 1)
            callbacks = [_SlowSaves(made.coordinator, manager)] if saves else []
            made.model.fit(data(), callbacks=callbacks, verbose=0)
            assert int(made.optimizer.iterations) == ROWS // BATCH // 2
            weights.append(made.model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sync_round_equals_one_step_on_all_its_batches(cluster: ps.LocalCluster) -> None:
    with program(cluster.resolver, "sync") as made:
        first = made.model.get_weights()
        made.train(6)
        together = made.model.get_weights()
    alone = ps.models.WideDeep(made.model.schema, dim=4, hidden=(8,))
    alone.set_weights(first)
    optimizer = ps.optimizers.Adagrad(0.1)
    for batch in data().take(6).unbatch().batch(2 * BATCH):
        with ps.GradientTape() as tape:
            loss = alone.loss(batch)
        optimizer.apply_gradients(tape.gradients(loss))
    for one, other in zip(together, alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_sync_step_that_reads_its_own_change_is_refused(cluster: ps.LocalCluster) -> None:
    with program(cluster.resolver, "sync") as made:
        rows = made.rows

        def step() -> int:
            rows.assign_add(1)
            return int(rows)

        made.coordinator.schedule(step)
        with pytest.raises(FailedPreconditionError, match="schedule one step at a time"):
            made.coordinator.join(DEADLINE_S)
        made.train(2)
        assert int(rows) == 2 * BATCH


class Counted:
    """A program that counts rows in a table; each trainer reads a share of its own."""

    def __init__(self, resolver: Any, consistency: Any) -> None:
        self.strategy = ps.ParameterServerStrategy(
            resolver,
            variable_partitioner=ps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
        )
        self.coordinator = ps.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.counts = ps.Variable(np.zeros((ROWS, 1), np.int64), name="counts")
        dataset = self.strategy.experimental_distribute_dataset(ds.Dataset.range(ROWS).batch(BATCH))
        self.data = iter(self.coordinator.create_per_worker_dataset(dataset))

    def step(self) -> Any:
        counts = self.counts

        def step(iterator: Any) -> tuple[int, int]:
            try:
                ids = next(iterator).column("id").to_numpy()
            except StopIteration:
                return ps.get_current_worker_index(), 0
            time.sleep(0.01)
            counts.scatter_add(ids, np.ones((len(ids), 1), np.int64))
            return ps.get_current_worker_index(), len(ids)

        return step


def test_backup_trainer_replaces_frozen_one_without_losing_rows(cluster: ps.LocalCluster) -> None:
    made = Counted(cluster.resolver, ps.consistency.sync(backup_workers=1))
    coordinator, step = made.coordinator, made.step()
    try:
        wait_for_trainers(coordinator, 2)
        indices = [coordinator.schedule(ps.get_current_worker_index) for _ in range(2)]
        assert coordinator.fetch(indices) == [0, 1]
        cluster.suspend("worker", 0)
        try:
            values = [coordinator.schedule(step, args=(made.data,)) for _ in range(6)]
            coordinator.join(timeout=DEADLINE_S)
        finally:
            cluster.resume("worker", 0)
        assert [value.fetch()[0] for value in values] == [1] * 6
        ended: set[int] = set()
        deadline_s = time.monotonic() + DEADLINE_S
        while ended != {0, 1}:
            assert time.monotonic() < deadline_s, (ended, coordinator.stats())
            values = [coordinator.schedule(step, args=(made.data,)) for _ in range(4)]
            ended |= {trainer for trainer, rows in coordinator.fetch(values) if not rows}
        stats, counts = coordinator.stats(), made.counts.numpy()
        assert stats["dropped"] or stats["losses"]
        # A trainer that is frozen for too long is lost; it then reads its share from the start.
        assert (counts >= 1).all() if stats["losses"] else (counts == 1).all()
    finally:
        coordinator.close()


def wait_for_trainers(coordinator: ps.ClusterCoordinator, count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while len(coordinator.live_trainers()) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_ssp_bounds_the_lead_over_a_slow_trainer(cluster: ps.LocalCluster) -> None:
    staleness = 3
    strategy = ps.ParameterServerStrategy(
        cluster.resolver, consistency=ps.consistency.ssp(staleness=staleness)
    )
    assert strategy.consistency == ps.consistency.ssp(staleness)
    coordinator = ps.ClusterCoordinator(strategy)

    def step() -> tuple[int, float, float]:
        started_s = time.monotonic()
        time.sleep(0.05 if ps.get_current_worker_index() else 0.001)
        return ps.get_current_worker_index(), started_s, time.monotonic()

    try:
        wait_for_trainers(coordinator, 2)
        runs = coordinator.fetch([coordinator.schedule(step) for _ in range(40)])
    finally:
        coordinator.close()
    fast = sorted(start_s for trainer, start_s, _ in runs if trainer == 0)
    slow = sorted(end_s for trainer, _, end_s in runs if trainer == 1)
    leads = [
        number - sum(end_s <= start_s for end_s in slow) for number, start_s in enumerate(fast)
    ]
    assert 1 <= max(leads) <= staleness, leads
    assert len(slow) >= 8, "the slow trainer takes its share"


def test_sync_round_ends_although_a_trainer_is_killed(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    with program(cluster.resolver, "sync") as made:
        made.train(2)
        rows, gate = made.rows, str(tmp_path / "gate")

        def wait_and_count(number: int) -> None:
            deadline_s = time.monotonic() + DEADLINE_S
            while number > 1 and not os.path.exists(gate):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("nobody opened the gate")
                time.sleep(0.01)
            rows.assign_add(1)

        values = [made.coordinator.schedule(wait_and_count, args=(n,)) for n in range(10)]
        values[1].fetch(DEADLINE_S)
        cluster.kill("worker", 1)
        pathlib.Path(gate).touch()
        made.coordinator.join(DEADLINE_S)
        assert int(rows) == 2 * BATCH + 10
        assert made.coordinator.stats()["losses"] == 1
    cluster.restart("worker", 1)
