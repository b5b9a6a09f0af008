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


def play_without_faults(name: str, folder: pathlib.Path) -> None:
    schedule = schedule_of(name)
    result = play(schedule, folder)
    if result.faults:
        lines = ["", *result.faults, str(schedule), f"logs: {folder}"]
        pytest.fail("\n".join([*lines, f"replay: python -m tests.chaos.replay {name}"]))


@pytest.mark.parametrize("name", FIXED)
def test_fixed_schedule_delivers_every_row_once(name: str, tmp_path: pathlib.Path) -> None:
    play_without_faults(name, tmp_path)


def test_random_schedule_delivers_every_row_once(chaos_seed: int, tmp_path: pathlib.Path) -> None:
    play_without_faults(str(chaos_seed), tmp_path)
