"""Tests of the simulation: every deliberate mistake in training is noticed within some lives."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.scenario import Failure
from tests.simulation.training_mutants import TRAINING_MUTANTS
from tests.simulation.training_scenario import play, staged

SEEDS = 1_500


def first_failure() -> str | None:
    for seed in range(SEEDS):
        try:
            play(seed)
        except Failure as failure:
            return str(failure)
    return None


@pytest.mark.parametrize("mutant", TRAINING_MUTANTS, ids=[each.name for each in TRAINING_MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with staged():
        mutant.apply(monkeypatch)
        failure = first_failure()
    assert failure is not None, f"{mutant.name} survived {SEEDS} seeds"
    assert any(sign in failure for sign in mutant.signs), failure


def test_there_are_enough_mistakes() -> None:
    assert len(TRAINING_MUTANTS) >= 17
