"""A process killed while it writes a checkpoint leaves the last complete one intact."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

import pstrain as ps
from pstrain.checkpoints.checkpoint import checkpoints
from pstrain.failpoints import KILL_AT_ENV
from pstrain.variables.scope import local_parameters
from tests.chaos import saving_program
from tests.chaos.saving_program import ROWS, SAVES

_CHANCE = random.Random(4)
_WRITES = [f"checkpoint_write:{n}" for n in _CHANCE.sample(range(1, 60), 4)]
_COMMITS = [f"checkpoint_commit:{n}" for n in _CHANCE.sample(range(1, 14), 3)]
PLACES = [*_WRITES[:2], *_COMMITS[:2]]
PLACES += [pytest.param(place, marks=pytest.mark.long) for place in (*_WRITES[2:], *_COMMITS[2:])]


# Saves after the first link most files and write few; the sixth write is the first such link.
_INCREMENTS = ["checkpoint_write:16", "checkpoint_commit:7"]
_INCREMENTS += [
    pytest.param(f"checkpoint_write:{n}", marks=pytest.mark.long) for n in range(12, 30, 2)
]


@pytest.mark.parametrize("place", PLACES)
def test_save_interrupted_by_kill_keeps_the_last_complete_checkpoint(
    place: str, tmp_path: pathlib.Path
) -> None:
    check_checkpoints_after_kill(place, tmp_path)


@pytest.mark.parametrize("place", _INCREMENTS)
def test_incremental_save_interrupted_by_kill_keeps_the_last_complete_checkpoint(
    place: str, tmp_path: pathlib.Path
) -> None:
    check_checkpoints_after_kill(place, tmp_path, "incremental", every=10)


def check_checkpoints_after_kill(
    place: str, tmp_path: pathlib.Path, how: str = "", *, every: int = 1
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", saving_program.__name__, str(tmp_path), how],
        env={**os.environ, KILL_AT_ENV: place},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == -9, (done.stdout, done.stderr)
    saved = [int(line) for line in done.stdout.split()]
    with local_parameters():
        table = ps.Variable(np.zeros((ROWS, 16), np.float32), name="table")
        number = ps.Variable(0, name="number")
        found = ps.Checkpoint(table=table, number=number)
        if not saved:
            assert ps.latest_checkpoint(tmp_path) in (None, str(tmp_path / "ckpt-1"))
            return
        for path in checkpoints(tmp_path):
            found.restore(path)
            np.testing.assert_array_equal(table.numpy()[::every], int(number))
            assert every == 1 or not table.numpy()[1::every].any()
        assert int(number) in (saved[-1], saved[-1] + 1)
        assert saved == list(range(1, saved[-1] + 1))
        # What the killed process left does not disturb the next save.
        assert found.save(tmp_path) == str(tmp_path / f"ckpt-{min(int(number), SAVES - 1) + 1}")
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".partial")]
