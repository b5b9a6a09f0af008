"""Closures on real trainers: the progress of join, the trainers' times, and a trace."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator

import pytest

import pstrain as ps
from pstrain.errors import DeadlineExceededError
from tests.integration.test_coordinator import DEADLINE_S, wait_for, wait_until


@pytest.fixture(scope="module")
def coordinator(cluster: ps.LocalCluster) -> Iterator[ps.ClusterCoordinator]:
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(cluster.resolver))
    wait_until(lambda: coordinator.live_trainers() == {0, 1}, "both trainers")
    yield coordinator
    coordinator.close()


def test_join_reports_the_progress_of_closures(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    gate, told = tmp_path / "gate", list[ps.JoinProgress]()
    for _ in range(20):
        coordinator.schedule(wait_for, args=(str(gate),))

    def note(progress: ps.JoinProgress) -> None:
        told.append(progress)
        gate.touch()

    coordinator.join(DEADLINE_S, note, progress_interval_s=0.05)
    assert told[0].running + told[0].queued == 20
    assert (told[-1].running, told[-1].queued, told[-1].trainers) == (0, 0, 2)
    assert told[-1].finished - told[0].finished == 20
    value = coordinator.schedule(time.sleep, args=(0.2,))
    with pytest.raises(DeadlineExceededError, match=r"sleep \(closure \d+\)"):
        coordinator.fetch([value], timeout=0.01)
    coordinator.join(DEADLINE_S, print)


def test_trainer_stats_name_the_straggler(coordinator: ps.ClusterCoordinator) -> None:
    def work() -> None:
        # Far apart, as a busy machine adds to both times.
        time.sleep(0.2 if ps.get_current_worker_index() else 0.01)

    # More closures than the test before ran, as the times of those count too.
    values = [coordinator.schedule(work, trainer=index) for index in (0, 1) for _ in range(25)]
    coordinator.join(DEADLINE_S)
    assert all(value.has_value for value in values)
    fast, slow = stats = coordinator.trainer_stats()
    assert fast.median_s < slow.median_s
    assert [each.trainer for each in stats.stragglers] == [1]
    assert "slow: its runs take" in repr(stats)


def test_trace_holds_each_run_with_its_trainer_and_duration(
    coordinator: ps.ClusterCoordinator, tmp_path: pathlib.Path
) -> None:
    def step() -> None:
        time.sleep(0.02)

    path = tmp_path / "new" / "trace.json"
    with coordinator.trace(path):
        assert path.parent.is_dir(), "a folder that cannot be made is an error before anything runs"
        values = [coordinator.schedule(step, trainer=number % 2) for number in range(6)]
        coordinator.join(DEADLINE_S)
    trace = json.loads(path.read_text())
    runs = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "running"]
    assert {e["args"]["closure"] for e in runs} == {value.closure for value in values}
    assert {e["pid"] for e in runs} == {1, 2}
    assert all(e["dur"] >= 19_000 for e in runs)
    assert all(e["name"].endswith("step") for e in runs)
