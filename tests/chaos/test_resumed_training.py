"""A restore in mid-epoch: the rows that the checkpoint lacks are trained on, each once."""

from __future__ import annotations

import pathlib

import pytest

import pstrain as ps
from tests.chaos.counted_rows import counted

ROWS = 4_000


@pytest.mark.parametrize(
    ("workers", "servers"), [pytest.param(1, 1, marks=pytest.mark.long), (3, 2)]
)
def test_resume_in_mid_epoch_trains_each_row_once(
    tmp_path: pathlib.Path, workers: int, servers: int
) -> None:
    with (
        ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster,
        counted(cluster, ROWS, pause_s=0.002) as program,
    ):
        manager = ps.CheckpointManager(
            ps.Checkpoint(**program.objects()), tmp_path, 2, asynchronous=True
        )
        program.run(until=ROWS // 3)
        values = [program.coordinator.schedule(program.step(), (program.iterator,)) for _ in "123"]
        saved = manager.save()
        assert saved is not None
        assert all(value.is_ready() for value in values)
        at_save = int(program.taken)
        # Training goes on while files are written; the checkpoint has none of these steps.
        program.run(until=ROWS // 3)
        saved.wait(60)
        assert saved.pause_s < 30
    with (
        ps.LocalCluster(workers=workers, ps=servers, data_workers=1) as cluster,
        counted(cluster, ROWS, pause_s=0.0) as program,
    ):
        manager = ps.CheckpointManager(ps.Checkpoint(**program.objects()), tmp_path, 2)
        assert manager.restore_or_initialize() == saved
        assert int(program.taken) == at_save
        rows, _ = program.run()
        assert rows == ROWS - at_save
        program.check()
