"""Every row is trained on once, by whole steps, although trainers are lost at any moment."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

import pstrain as ps
from pstrain.failpoints import KILL_AT_ENV
from tests.chaos.counted_rows import DEADLINE_S, counted
from tests.waiting import wait_until


def killing(cluster: ps.LocalCluster, seed: int, kills: int, rows: int) -> Callable[[int], None]:
    """Returns a callback that kills and restarts a trainer at ``kills`` random numbers of rows."""
    chance = random.Random(seed)
    at = sorted(chance.randrange(rows // 10, rows * 9 // 10) for _ in range(kills))

    def between(done: int) -> None:
        while at and done >= at[0]:
            at.pop(0)
            index = chance.randrange(2)
            time.sleep(chance.random() * 0.02)
            cluster.kill("worker", index)
            cluster.restart("worker", index)

    return between


@pytest.mark.long
def test_every_row_is_trained_once_although_trainers_are_killed_at_random() -> None:
    rows, seed = 15_000, 1
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster,
        counted(cluster, rows) as program,
    ):
        done = program.run(killing(cluster, seed, kills=3, rows=rows))
        program.check(*done)
        assert program.coordinator.stats()["losses"]


@pytest.mark.long
@pytest.mark.parametrize("consistency", [ps.consistency.sync(), ps.consistency.sync(1)], ids=str)
def test_sync_training_trains_every_row_once_although_a_trainer_is_killed(consistency: Any) -> None:
    rows, seed = 2_500, 2
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster,
        counted(cluster, rows, consistency=consistency) as program,
    ):
        done = program.run(killing(cluster, seed, kills=1, rows=rows))
        program.check(*done)
        assert program.coordinator.stats()["losses"]


@pytest.mark.parametrize("place", ["prepared", "decided"])
def test_every_row_is_trained_once_although_a_trainer_dies_within_a_commit(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KILL_AT_ENV, f"{place}:3")
    with ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster:
        del os.environ[KILL_AT_ENV]
        cluster.restart("worker", 1)
        with counted(cluster, 20_000, pause_s=0.002) as program:
            wait_until(lambda: program.coordinator.live_trainers() == {0, 1}, "both trainers")
            done = program.run()
            program.check(*done)
            assert program.coordinator.stats()["losses"] == 1


@pytest.mark.long
def test_every_row_is_trained_once_although_a_lost_trainer_resumes() -> None:
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster,
        counted(cluster, 12_000) as program,
    ):
        frozen: list[bool] = []

        def between(done: int) -> None:
            if done > 2_000 and not frozen:
                frozen.append(True)
                cluster.suspend("worker", 0)
                deadline_s = time.monotonic() + DEADLINE_S
                while program.coordinator.stats()["losses"] < 1:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.05)
                cluster.resume("worker", 0)

        done = program.run(between)
        program.check(*done)
        assert frozen
