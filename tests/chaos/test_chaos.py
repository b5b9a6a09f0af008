"""Real processes are killed, frozen and cut off; every row arrives once and readers see the end.

The fixed schedules always run. `--chaos-seeds N` adds N random ones, with seeds from
`--chaos-first SEED` on; a failure names the command that plays its schedule again.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.chaos.play import play
from tests.chaos.schedule import FIXED, schedule_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


def survive(name: str, folder: pathlib.Path) -> None:
    schedule = schedule_of(name)
    result = play(schedule, folder)
    if result.faults:
        lines = ["", *result.faults, str(schedule), f"logs: {folder}"]
        pytest.fail("\n".join([*lines, f"replay: python -m tests.chaos.replay {name}"]))


@pytest.mark.parametrize("name", FIXED)
def test_every_row_arrives_once(name: str, tmp_path: pathlib.Path) -> None:
    survive(name, tmp_path)


def test_every_row_arrives_once_under_a_seed(chaos_seed: int, tmp_path: pathlib.Path) -> None:
    survive(str(chaos_seed), tmp_path)
