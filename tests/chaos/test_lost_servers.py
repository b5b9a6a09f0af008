"""A lost parameter server sets everything back to the last checkpoint, and no further."""

from __future__ import annotations

import contextlib
import pathlib
import random
import time

import pytest

import pstrain as ps
from pstrain.errors import UnavailableError
from tests.chaos.counted_rows import KilledServers, counted

ROWS = 5_000
PART_BYTES = 8 << 20


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_every_row_is_trained_once_although_servers_are_killed(
    seed: int, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(seed)
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster,
        counted(cluster, ROWS, pause_s=0.01) as program,
    ):
        manager = ps.CheckpointManager(
            ps.Checkpoint(**program.objects()), tmp_path, 2, asynchronous=True
        )
        program.coordinator.recover_from(manager)
        manager.save()
        between = KilledServers(
            *(cluster, program, manager, chance),
            save_at=[ROWS // 3, 2 * ROWS // 3],
            first_at=chance.randrange(ROWS // 10, ROWS // 3),
        )
        program.run(between)
        program.coordinator.join(60)
        assert not between.left
        assert program.coordinator.stats()["restores"] >= 2
        program.check()


@pytest.mark.long
def test_server_killed_while_it_writes_a_checkpoint_restores_the_one_before(
    tmp_path: pathlib.Path,
) -> None:
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1, supervise=True) as cluster,
        counted(cluster, ROWS, pause_s=0.01) as program,
    ):
        with program.strategy.scope():
            large = ps.Variable(ps.initializers.uniform(seed=1)((2_000_000, 16)), name="large")
        manager = ps.CheckpointManager(
            ps.Checkpoint(large=large, **program.objects()), tmp_path, 2, asynchronous=True
        )
        program.coordinator.recover_from(manager)
        whole = manager.save()
        assert whole is not None
        whole.wait(60)
        killed: list[bool] = []

        def between(done: int) -> None:
            if killed or done < ROWS // 3:
                return
            saving = manager.save()
            assert saving is not None
            while not saving.has_ended:
                parts = tmp_path.glob(".partial*/**/ps1-variable-*.arrow")
                if any(part.stat().st_size > PART_BYTES for part in parts):
                    cluster.kill("ps", 1)
                    killed.append(True)
                    break
            with contextlib.suppress(UnavailableError):
                saving.wait(60)
            killed.append(saving.is_complete)

        program.run(between)
        program.coordinator.join(60)
        assert killed == [True, False]
        assert program.coordinator.stats()["restores"] == 1
        assert ps.latest_checkpoint(tmp_path) == str(whole)
        program.check()


def test_lost_server_without_checkpoint_is_an_error_at_once() -> None:
    with (
        ps.LocalCluster(workers=1, ps=2, data_workers=1) as cluster,
        counted(cluster, ROWS) as program,
    ):
        program.run(until=100)
        cluster.kill("ps", 1)
        started_s = time.monotonic()
        with pytest.raises(UnavailableError, match="restore a checkpoint"):
            program.run()
        assert time.monotonic() - started_s < 20


def test_lost_server_before_the_first_checkpoint_is_an_error(tmp_path: pathlib.Path) -> None:
    with (
        ps.LocalCluster(workers=1, ps=2, data_workers=1) as cluster,
        counted(cluster, ROWS) as program,
    ):
        manager = ps.CheckpointManager(ps.Checkpoint(**program.objects()), tmp_path, 2)
        program.coordinator.recover_from(manager)
        program.run(until=100)
        cluster.kill("ps", 0)
        with pytest.raises(UnavailableError, match="no checkpoint yet"):
            program.run()
