"""Keys are evicted while trainers train, freeze, and parameter servers are lost."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.kernels.keys import VACATED
from tests.waiting import wait_until

DEADLINE_S = 90.0
CAPACITY = 3_000
# Keys drift: a step takes some of this many keys from its number on.
WIDTH = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[ps.LocalCluster]:
    """Runs a cluster whose lost servers come back."""
    with ps.LocalCluster(workers=2, ps=2, data_workers=0, supervise=True) as cluster:
        yield cluster


class Program:
    """Steps that add 1 and the key to the row of each of their keys."""

    def __init__(self, cluster: ps.LocalCluster, consistency: Any = "async") -> None:
        self.strategy = ps.ParameterServerStrategy(
            cluster.resolver,
            variable_partitioner=ps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
        )
        self.coordinator = ps.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.lookup = ps.layers.OnlineLookup(CAPACITY)
            self.table = ps.Variable(ps.initializers.zeros()((CAPACITY, 2), "int64"))
        self.scheduled = 0

    def step(self, number: int) -> np.ndarray:
        """Returns the keys of a step."""
        return 1 + number + np.random.default_rng(number).integers(0, WIDTH, 100)

    def schedule(self, steps: int, pause_s: float = 0.0) -> None:
        lookup, table = self.lookup, self.table

        def train(keys: np.ndarray) -> None:
            ids = lookup(keys, training=True)
            time.sleep(pause_s)
            added = np.stack([np.ones_like(keys), keys], axis=1)
            table.scatter_add(ps.IndexedSlices(added[ids > 0], ids[ids > 0]))

        for _ in range(steps):
            self.coordinator.schedule(train, args=(self.step(self.scheduled),))
            self.scheduled += 1

    def evict(self, keep: int) -> int:
        return self.lookup.evict(keep, self.table)

    def keys(self) -> dict[int, int]:
        """Returns the row of each key."""
        keys = self.lookup.variables[0].numpy()
        return {int(key): row for row, key in enumerate(keys) if key > VACATED}

    def counts(self) -> dict[int, int]:
        """Returns how often each key was trained on; all rows must be those of their keys."""
        rows, table = self.keys(), self.table.numpy()
        expected = np.zeros_like(table)
        for key, row in rows.items():
            expected[row] = table[row, 0], table[row, 0] * key
        np.testing.assert_array_equal(table, expected)
        return {key: int(table[row, 0]) for key, row in rows.items()}


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_steps_between_evictions_train_the_rows_of_their_own_keys(
    consistency: str, cluster: ps.LocalCluster
) -> None:
    program = Program(cluster, consistency)
    try:
        evicted = 0
        for _ in range(8):
            program.schedule(60)
            evicted += program.evict(WIDTH)
        program.coordinator.join(DEADLINE_S)
        assert evicted > 0
        evicted = program.evict(CAPACITY - 1)
        program.schedule(1)
        program.coordinator.join(DEADLINE_S)
        counts = program.counts()
        last = set(program.step(program.scheduled - 1).tolist())
        assert program.evict(len(last)) == len(counts) - len(last)
        assert program.counts() == {key: counts[key] for key in last}
        # With room for the newest keys, none of them is refused.
        assert program.lookup.stats()["refused"] == 0
    finally:
        program.coordinator.close()


def test_frozen_trainer_that_wakes_up_after_an_eviction_trains_no_row_of_before(
    cluster: ps.LocalCluster,
) -> None:
    program = Program(cluster)
    wait_until(lambda: program.coordinator.live_trainers() == {0, 1}, "both trainers")
    program.schedule(20)
    program.coordinator.join(DEADLINE_S)
    # Both trainers hold rows of keys in running steps.
    program.schedule(6, pause_s=1.0)
    time.sleep(0.5)
    cluster.suspend("worker", 0)
    try:
        assert program.evict(0) > 0
        assert program.coordinator.stats()["losses"] == 1
        program.scheduled += 10 * WIDTH
        program.schedule(20)
    finally:
        cluster.resume("worker", 0)
    wait_until(lambda: program.coordinator.live_trainers() == {0, 1}, "the trainer to return")
    program.schedule(20, pause_s=0.1)
    program.coordinator.join(DEADLINE_S)
    # The steps of the frozen trainer ran again, after the eviction.
    trained = sum(program.counts().values())
    assert trained in range(100 * 41, 100 * 46 + 1, 100)
    program.coordinator.close()


def restarted(program: Program, restores: int) -> None:
    wait_until(lambda: program.coordinator.stats()["restores"] == restores, "the restore")
    program.coordinator.join(DEADLINE_S)


def test_server_lost_after_an_eviction_takes_the_keys_of_the_checkpoint_back(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    program = Program(cluster)
    objects = {"lookup": program.lookup, "table": program.table}
    manager = ps.CheckpointManager(
        ps.Checkpoint(**objects), tmp_path, 3, incremental=True, asynchronous=False
    )
    program.coordinator.recover_from(manager)
    program.schedule(50)
    program.coordinator.join(DEADLINE_S)
    before, rows = program.counts(), program.keys()
    manager.save()
    assert program.evict(100) == len(before) - 100
    program.schedule(10)
    program.coordinator.join(DEADLINE_S)
    cluster.kill("ps", 1)
    restarted(program, 1)
    again = program.counts()
    assert {key: program.keys()[key] for key in rows} == rows
    assert sum(again.values()) == sum(before.values()) + 10 * 100
    program.evict(150)
    left, rows = program.counts(), program.keys()
    manager.save()
    program.schedule(10)
    program.coordinator.join(DEADLINE_S)
    program.evict(0)
    cluster.kill("ps", 0)
    restarted(program, 2)
    assert {key: program.keys()[key] for key in rows} == rows
    assert sum(program.counts().values()) == sum(left.values()) + 10 * 100
    program.coordinator.close()


def broken_at(
    parameters: Any, monkeypatch: pytest.MonkeyPatch, kind: str, harm: Callable[[], None]
) -> None:
    """Has ``harm`` done just before the first request ``kind`` is sent."""
    has_happened, answers = threading.Event(), parameters._answers

    def broken_answers(messages: Any) -> Any:
        kinds = [header["kind"] for header, _ in messages.values()]
        if kind in kinds and not has_happened.is_set():
            has_happened.set()
            harm()
        return answers(messages)

    monkeypatch.setattr(parameters, "_answers", broken_answers)


@pytest.mark.parametrize("kind", ["idle_keys", "reset_rows", "remove_keys"])
def test_eviction_that_a_lost_server_undoes_is_done_again_after_the_restore(
    kind: str,
    cluster: ps.LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    program = Program(cluster)
    manager = ps.CheckpointManager(
        ps.Checkpoint(lookup=program.lookup, table=program.table), tmp_path, 3
    )
    program.coordinator.recover_from(manager)
    program.schedule(30)
    program.coordinator.join(DEADLINE_S)
    manager.save()
    manager.wait()
    before = program.counts()
    broken_at(program.strategy.parameters, monkeypatch, kind, lambda: cluster.kill("ps", 1))
    assert program.evict(50) == len(before) - 50
    assert program.coordinator.stats()["restores"] == 1
    left = program.counts()
    assert len(left) == 50
    assert left == {key: before[key] for key in left}
    program.schedule(10)
    program.coordinator.join(DEADLINE_S)
    assert sum(program.counts().values()) == sum(left.values()) + 10 * 100
    program.coordinator.close()


@pytest.mark.parametrize("kind", ["reset_rows", "remove_keys"])
def test_eviction_that_a_new_session_overtakes_is_done_again_in_it(
    kind: str, cluster: ps.LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    program = Program(cluster)
    program.schedule(30)
    program.coordinator.join(DEADLINE_S)
    before = program.counts()
    checkpoint = ps.Checkpoint(lookup=program.lookup, table=program.table)
    path = checkpoint.save(tmp_path)

    def begin_anew() -> None:
        program.strategy.begin_anew()
        checkpoint.restore(path)

    broken_at(program.strategy.parameters, monkeypatch, kind, begin_anew)
    # What is left of the first eviction would reset rows of keys that the second one keeps.
    assert program.evict(50) == len(before) - 50
    left = program.counts()
    assert len(left) == 50
    assert left == {key: before[key] for key in left}
    program.coordinator.close()


def test_fit_goes_on_after_a_server_was_lost_during_an_eviction(
    cluster: ps.LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    user = np.arange(20_000) // 10
    columns = {"user": user, "label": user % 2}
    categories = {"user": ps.Category(2_500, online=True)}
    with strategy.scope():
        model = ps.models.WideDeep(ps.FeatureSchema(categorical=categories), dim=8, hidden=(8,))
        model.compile(ps.optimizers.Adagrad(0.1))
    broken_at(strategy.parameters, monkeypatch, "reset_rows", lambda: cluster.kill("ps", 1))
    evict = ps.callbacks.Evict(300, every_steps=8)
    checkpoint = ps.callbacks.Checkpoint(tmp_path, every_steps=8, asynchronous=False)
    history = model.fit(
        columns,
        batch_size=500,
        callbacks=[checkpoint, evict],
        verbose=0,
        steps_per_execution=2,
    )
    assert history.history["examples"] == [20_000]
    assert ps.ClusterCoordinator(strategy).stats()["restores"] == 1
    assert model.online.stats()["used"] == 2_000 - evict.evicted
    ps.ClusterCoordinator(strategy).close()


def test_fit_evicts_keys_as_new_ones_come(cluster: ps.LocalCluster) -> None:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    user = np.arange(20_000) // 10
    columns = {"user": user, "page": user % 7, "label": user % 2}
    categories = {
        "page": ps.Category(20, online=True),
        "user": ps.Category(2_000, online=True),
    }
    with strategy.scope():
        model = ps.models.WideDeep(ps.FeatureSchema(categorical=categories), dim=8, hidden=(8,))
        model.compile(ps.optimizers.Adagrad(0.1))
    evict = ps.callbacks.Evict({"user": 300}, every_steps=4)
    model.fit(
        columns, batch_size=500, epochs=2, callbacks=[evict], verbose=0, steps_per_execution=2
    )
    assert evict.evicted > 1_000
    stats = model.online.stats()
    assert stats["used"] <= 7 + 1_999
    assert stats["refused"] == 0
    assert model.evict({"user": 0, "page": 7}) == stats["used"] - 7
    ps.ClusterCoordinator(strategy).close()
