"""Tests that the parallel runner finds the same first failing seed as a loop would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.simulation import runner
from tests.simulation.__main__ import main
from tests.simulation.base_scenario import Failure
from tests.simulation.runner import BLOCK, PROTOCOLS, Report, run_seeds


def failing(*bad: int) -> Callable[[int], None]:
    def play(seed: int) -> None:
        if seed in bad:
            raise Failure(seed, AssertionError("made up"), ())

    return play


def fake(monkeypatch: pytest.MonkeyPatch, play: Callable[[int], None]) -> None:
    protocol = PROTOCOLS["delivery"]._replace(play=play)
    monkeypatch.setitem(runner.PROTOCOLS, "delivery", protocol)


def test_all_seeds_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, failing())
    assert run_seeds(range(2 * BLOCK + 7), None) == Report(2 * BLOCK + 7, None)


def test_lowest_failing_seed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, failing(BLOCK + 3, BLOCK + 4, 3 * BLOCK))
    report = run_seeds(range(5 * BLOCK), None)
    assert report.first is not None
    assert report.first.startswith(f"seed {BLOCK + 3} after")
    assert "python -m tests.simulation.replay" in report.first


def test_no_block_of_seeds_begins_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0)

    def play(_seed: int) -> None:
        clock.now_s += 1.0

    fake(monkeypatch, play)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    report = run_seeds(range(5 * BLOCK), None, within_s=BLOCK + 1.0)
    assert report == Report(2 * BLOCK, None)


def test_command_plays_its_protocols_on_two_processes() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "120", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    delivery, *others, training = done.stdout.splitlines()
    kinds = ("coordinated", "snapshots", "sync", "ssp")
    assert [line.split(" in ")[0] for line in others] == [f"{kind}: 1 schedules" for kind in kinds]
    assert delivery.startswith("delivery: 120 schedules in ")
    assert training.startswith("training: 12 schedules in ")
    assert "on 2 processes" in training


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--protocols", "loops"], "no seeds of loops to play: give --restore-seeds"),
        (
            ["--protocols", "second-losses", "--restore-seeds", "3"],
            "no seeds of second-losses to play: give --restore-seeds 4 or more",
        ),
        (["--seeds", "9", "--protocols", "training", "ssp"], "give --training-seeds"),
        (["--seeds", "0"], "give --seeds"),
    ],
)
def test_command_with_nothing_to_play_names_the_option_that_is_needed(
    arguments: list[str],
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert remedy in capsys.readouterr().err
