"""Plays the saving of datasets, seed by seed, and checks every step.

SNAPSHOT_SEEDS is the number of seeds (default 60); a failure names the command that replays it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.noticing import SNAPSHOT_LIVES, noticed_snapshots
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.snapshot_scenario import play, staged

SEEDS = int(os.environ.get("SNAPSHOT_SEEDS", "60"))


def test_whatever_fails_each_row_is_saved_once() -> None:
    with staged():
        outcomes = [play(seed) for seed in range(SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    kinds = {" ".join(fault.split()[:3]) for outcome in outcomes for fault in outcome.faults}
    assert {"kill in a", "freeze in a", "kill dispatcher at"} <= kinds


def test_a_life_is_not_over_before_the_last_dataset_is_saved() -> None:
    with staged():
        play(2365)


@pytest.mark.parametrize("seed", [3278, 3487])
def test_who_is_frozen_at_the_end_wakes_up_before_it_must_have_stopped(seed: int) -> None:
    with staged():
        play(seed)


def test_a_draft_that_cannot_be_removed_does_not_fail_what_is_done() -> None:
    with staged():
        play(2782)


@pytest.mark.parametrize("mutant", SNAPSHOT_MUTANTS, ids=[m.name for m in SNAPSHOT_MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant) -> None:
    failure = noticed_snapshots(mutant)
    assert failure is not None, f"{mutant.name} survived {SNAPSHOT_LIVES} lives"
    assert any(sign in str(failure) for sign in mutant.signs), failure
