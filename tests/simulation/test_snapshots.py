"""Plays the saving of datasets, seed by seed, and checks every step.

SNAPSHOT_SEEDS is the number of seeds (default 60); a failure names the command that replays it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.noticing import SNAPSHOT_SEEDS_MAX, noticed_snapshots
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.snapshot_scenario import Scenario, play, staged
from tests.simulation.virtual_disk import Disk

SEEDS = int(os.environ.get("SNAPSHOT_SEEDS", "60"))


def test_each_row_is_saved_once_whatever_fails() -> None:
    with staged():
        outcomes = [play(seed) for seed in range(SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    kinds = {" ".join(fault.split()[:3]) for outcome in outcomes for fault in outcome.faults}
    assert {"kill in a", "freeze in a", "kill dispatcher at"} <= kinds


def test_run_lasts_until_the_last_dataset_is_saved() -> None:
    with staged():
        scenario = Scenario(51)
        assert any(fault.startswith("save another") for fault in scenario.play().faults)
    assert [saver.outcome for saver in scenario.savers] == ["done", "done"]


@pytest.mark.parametrize("seed", [3278, 3487])
def test_node_frozen_at_the_end_wakes_before_it_is_checked_to_be_idle(seed: int) -> None:
    with staged():
        assert play(seed).faults[-1].startswith("freeze in a write worker0")


def test_done_written_by_a_frozen_worker_after_an_error_counts_for_nothing() -> None:
    with staged():
        scenario = Scenario(4887)
        scenario.play()
    assert scenario.checker.done_too_late
    assert [saver.outcome for saver in scenario.savers] == ["failed", "failed", "done"]


def test_draft_that_cannot_be_removed_does_not_fail_a_done_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove, kept = Disk.remove, list[str]()

    def note(disk: Disk, path: str) -> None:
        try:
            remove(disk, path)
        except ConnectionError:
            kept.append(path)
            raise

    monkeypatch.setattr(Disk, "remove", note)
    with staged():
        scenario = Scenario(2782)
        scenario.play()
    assert kept
    assert [saver.outcome for saver in scenario.savers] == ["done"]


@pytest.mark.parametrize("mutant", SNAPSHOT_MUTANTS, ids=[m.name for m in SNAPSHOT_MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_snapshots(mutant)
    assert failure is not None, f"{mutant.name} survived {SNAPSHOT_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure
