"""Closures of higher priority on a real trainer."""

from __future__ import annotations

import pathlib

import pytest

import pstrain as ps
from tests.integration.test_coordinator import DEADLINE_S, wait_for


def test_waiting_closures_run_by_priority(tmp_path: pathlib.Path) -> None:
    gate, order = tmp_path / "gate", tmp_path / "order"

    def record_order(number: int) -> None:
        with open(order, "a") as file:
            file.write(f"{number}\n")

    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        coordinator = ps.ClusterCoordinator(strategy, closures_in_flight=1)
        assert coordinator.schedule(lambda: 1).fetch(DEADLINE_S) == 1
        coordinator.schedule(wait_for, args=(str(gate),))
        assert coordinator.stats()["running"] == 1  # the trainer takes one closure at a time
        for number, priority in enumerate((0, 0, 2, -1, 2, 5)):
            coordinator.schedule(record_order, args=(number,), priority=priority)
        gate.touch()
        coordinator.join(timeout=DEADLINE_S)
        assert order.read_text().split() == ["5", "2", "4", "0", "1", "3"]
        with pytest.raises(TypeError, match="priority must be an integer"):
            coordinator.schedule(record_order, args=(0,), priority="high")  # type: ignore[arg-type]
        coordinator.close()
