"""Plays training in rounds and with bounded staleness, seed by seed, and checks every step.

CONSISTENCY_SEEDS is the number of seeds of each (default 20); a failure names the command that
replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.base_scenario import Outcome
from tests.simulation.consistency_mutants import SSP_MUTANTS, SYNC_MUTANTS
from tests.simulation.mutants import Mutant
from tests.simulation.noticing import CONSISTENCY_LIVES, noticed_consistency
from tests.simulation.training_scenario import play_ssp, play_sync, staged

SEEDS = int(os.environ.get("CONSISTENCY_SEEDS", "20"))
MUTANTS = [*SYNC_MUTANTS, *SSP_MUTANTS]


@pytest.mark.parametrize("play", [play_sync, play_ssp])
def test_whatever_fails_the_rule_holds_and_each_closure_counts_once(
    play: Callable[[int], Outcome],
) -> None:
    with staged():
        outcomes = [play(seed) for seed in range(SEEDS)]
        assert [play(seed) for seed in range(3)] == outcomes[:3]
    assert sum(bool(outcome.faults) for outcome in outcomes) > SEEDS / 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant) -> None:
    failure = noticed_consistency(mutant)
    assert failure is not None, f"{mutant.name} survived {CONSISTENCY_LIVES} lives"
    assert any(sign in str(failure) for sign in mutant.signs), failure
