"""Plays loops that end with their data, under each rule, seed by seed, and checks every step.

LOOP_SEEDS is the number of seeds (default 30); a failure names the command that replays it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.loop_mutants import LOOP_MUTANTS
from tests.simulation.mutants import Mutant
from tests.simulation.noticing import LOOP_SEEDS_MAX, noticed_loops
from tests.simulation.training_scenario import play_loops, staged

SEEDS = int(os.environ.get("LOOP_SEEDS", "30"))


def test_loop_trains_each_row_once_before_it_ends() -> None:
    with staged():
        outcomes = [play_loops(seed) for seed in range(SEEDS)]
        assert [play_loops(seed) for seed in range(3)] == outcomes[:3]
    assert sum(bool(outcome.faults) for outcome in outcomes) > SEEDS / 2


@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=[mutant.name for mutant in LOOP_MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_loops(mutant)
    assert failure is not None, f"{mutant.name} survived {LOOP_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure
