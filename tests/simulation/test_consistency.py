"""Plays training in rounds and with bounded staleness, seed by seed, and checks every step.

CONSISTENCY_SEEDS is the number of seeds of each (default 20); a failure names the command that
replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pstrain.coordinator import decide
from pstrain.coordinator.events import Events
from pstrain.coordinator.state import CoordinatorState
from tests.simulation.base_scenario import Outcome
from tests.simulation.consistency_mutants import SSP_MUTANTS, SYNC_MUTANTS
from tests.simulation.mutants import Mutant
from tests.simulation.noticing import CONSISTENCY_SEEDS_MAX, noticed_consistency
from tests.simulation.training_scenario import play_ssp, play_sync, staged

SEEDS = int(os.environ.get("CONSISTENCY_SEEDS", "20"))
MUTANTS = [*SYNC_MUTANTS, *SSP_MUTANTS]


@pytest.mark.parametrize("play", [play_sync, play_ssp])
def test_consistency_rule_holds_and_closures_count_once_whatever_fails(
    play: Callable[[int], Outcome],
) -> None:
    with staged():
        outcomes = [play(seed) for seed in range(SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    assert sum(bool(outcome.faults) for outcome in outcomes) > SEEDS / 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_consistency(mutant)
    assert failure is not None, f"{mutant.name} survived {CONSISTENCY_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure


def test_row_of_a_failed_closure_counts_once_although_its_trainer_is_lost_in_that_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, failed = decide.prepare, list[int]()

    def note(state: CoordinatorState, closure: int, *run: int, **how: bool) -> Events:
        failed.extend([closure] if how.get("has_failed") else [])
        return prepare(state, closure, *run, **how)

    monkeypatch.setattr(decide, "prepare", note)
    with staged():
        play_sync(33_100_314)
    assert failed, "a failed closure waits for what its trainer has prepared"
