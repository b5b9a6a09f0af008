"""Closures that are cancelled or miss their deadline, on real trainers, are applied nowhere."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import CancelledError, DeadlineExceededError, InvalidArgumentError
from tests.integration.test_coordinator import DEADLINE_S, wait_for, wait_until


class Program:
    """A coordinator, a variable on both servers, and a step that adds 1 to it."""

    def __init__(self, cluster: ps.LocalCluster, consistency: str) -> None:
        strategy = ps.ParameterServerStrategy(
            cluster.resolver, ps.partitioners.FixedShardsPartitioner(2), consistency=consistency
        )
        self.coordinator = ps.ClusterCoordinator(strategy)
        with strategy.scope():
            counter = ps.Variable(np.zeros(4, dtype=np.int64))

        def count(begun: str = "", gate: str = "") -> None:
            if gate:
                pathlib.Path(begun).touch()
                wait_for(gate)
            counter.assign_add(np.ones(4, dtype=np.int64))

        self.counter, self.count = counter, count

    def counted(self) -> list[int]:
        return list(self.counter.numpy())


@pytest.fixture(params=["async", "sync"])
def program(cluster: ps.LocalCluster, request: pytest.FixtureRequest) -> Iterator[Program]:
    made = Program(cluster, request.param)
    wait_until(lambda: made.coordinator.live_trainers() == {0, 1}, "both trainers")
    yield made
    made.coordinator.close()


def test_cancelled_closures_are_applied_on_no_server(
    program: Program, tmp_path: pathlib.Path
) -> None:
    coordinator, gate = program.coordinator, tmp_path / "gate"
    places = [(str(tmp_path / f"begun{i}"), str(gate)) for i in range(2)]
    running = [coordinator.schedule(program.count, args=each) for each in places]
    queued = [
        coordinator.schedule(program.count, args=(places[0][0], str(gate))) for _ in range(60)
    ]
    wait_until(lambda: pathlib.Path(places[0][0]).exists(), "the first to run")
    assert running[0].cancel(timeout=DEADLINE_S), "long before it has ended"
    assert all(value.cancel(timeout=DEADLINE_S) for value in queued[::2])
    with pytest.raises(CancelledError, match=r"count \(closure \d+\) was cancelled by"):
        running[0].fetch(DEADLINE_S)
    gate.touch()
    coordinator.join(timeout=DEADLINE_S)
    assert program.counted() == [1 + 30] * 4
    assert not queued[1].cancel()
    assert coordinator.stats()["cancelled"] == 31
    assert coordinator.schedule(lambda: 5).fetch(DEADLINE_S) == 5


def test_closures_past_their_deadline_are_applied_on_no_server(
    program: Program, tmp_path: pathlib.Path
) -> None:
    coordinator, gate = program.coordinator, tmp_path / "gate"
    places = [(str(tmp_path / f"begun{i}"), str(gate)) for i in range(2)]
    late = [coordinator.schedule(program.count, args=each, deadline_s=1.0) for each in places]
    others = [coordinator.schedule(program.count) for _ in range(10)]
    for value in late:
        with pytest.raises(DeadlineExceededError, match=r"1\.0 s after it was scheduled"):
            value.fetch(DEADLINE_S)
    gate.touch()
    coordinator.join(timeout=DEADLINE_S)
    assert program.counted() == [10] * 4
    assert all(value.has_value for value in others)
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        coordinator.schedule(program.count, deadline_s=0)


def test_cancelled_closure_is_not_rerun_after_its_trainer_is_killed(tmp_path: pathlib.Path) -> None:
    with ps.LocalCluster(workers=1, ps=2, data_workers=0) as cluster:
        program = Program(cluster, "async")
        coordinator = program.coordinator
        begun, gate = tmp_path / "begun", tmp_path / "gate"
        values = [
            coordinator.schedule(program.count, args=(str(begun), str(gate))) for _ in range(2)
        ]
        wait_until(begun.exists, "the first to run")
        assert values[0].cancel(timeout=DEADLINE_S)
        cluster.kill("worker", 0)
        gate.touch()
        cluster.restart("worker", 0)
        coordinator.join(timeout=DEADLINE_S)
        assert program.counted() == [1] * 4
        coordinator.close()
