"""Tests the simulation: every deliberate mistake in training is noticed within TRAINING_LIVES."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.noticing import TRAINING_LIVES, noticed_training
from tests.simulation.training_mutants import TRAINING_MUTANTS


@pytest.mark.parametrize("mutant", TRAINING_MUTANTS, ids=[each.name for each in TRAINING_MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant) -> None:
    failure = noticed_training(mutant)
    assert failure is not None, f"{mutant.name} survived {TRAINING_LIVES} lives"
    assert any(sign in str(failure) for sign in mutant.signs), failure


def test_there_are_enough_mistakes() -> None:
    assert len(TRAINING_MUTANTS) >= 26
