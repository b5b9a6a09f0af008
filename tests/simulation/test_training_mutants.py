"""Tests the simulation: each mutant of training is noticed within TRAINING_SEEDS_MAX seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.noticing import TRAINING_SEEDS_MAX, noticed_training
from tests.simulation.training_mutants import TRAINING_MUTANTS


@pytest.mark.parametrize("mutant", TRAINING_MUTANTS, ids=[each.name for each in TRAINING_MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_training(mutant)
    assert failure is not None, f"{mutant.name} survived {TRAINING_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure


def test_at_least_26_mutants_are_listed() -> None:
    assert len(TRAINING_MUTANTS) >= 26
