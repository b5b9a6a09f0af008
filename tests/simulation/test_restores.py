"""Lives of a training cluster that loses parameter servers and goes back to its checkpoints.

RESTORE_SEEDS says how many (60 unless told); a failure names the command that replays it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.noticing import RESTORE_LIVES, noticed_restores
from tests.simulation.restore_mutants import RESTORE_MUTANTS
from tests.simulation.training_scenario import play_restores, staged

SEEDS = int(os.environ.get("RESTORE_SEEDS", "60"))


def test_whatever_is_lost_each_closure_and_row_counts_once() -> None:
    with staged():
        outcomes = [play_restores(seed) for seed in range(SEEDS)]
        assert [play_restores(seed) for seed in range(5)] == outcomes[:5]
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    assert sum(fault.startswith("kill ps") for fault in faults) > SEEDS / 5


@pytest.mark.parametrize("mutant", RESTORE_MUTANTS, ids=[each.name for each in RESTORE_MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant) -> None:
    failure = noticed_restores(mutant)
    assert failure is not None, f"{mutant.name} survived {RESTORE_LIVES} lives"
    assert any(sign in str(failure) for sign in mutant.signs), failure
