"""Tests of the simulation: every deliberate mistake is noticed within 3,000 lives."""

from __future__ import annotations

import pytest

from tests.simulation import membership_mutants, mutants, quarantine_mutants, scenario
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenario import Failure, play
from tests.simulation.stage import staged

SEEDS = 3_000


def first_failure() -> str | None:
    for seed in range(SEEDS):
        try:
            play(seed)
        except Failure as failure:
            return str(failure)
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with staged():
        monkeypatch.setattr(scenario, "POISONED", mutant.poisoned)
        mutant.apply(monkeypatch)
        failure = first_failure()
    assert failure is not None, f"{mutant.name} survived {SEEDS} seeds"
    assert any(sign in failure for sign in mutant.signs), failure


def test_there_are_enough_mistakes() -> None:
    assert len(MUTANTS) >= 39
    modules = {module.__name__ for module in (membership_mutants, mutants, quarantine_mutants)}
    assert {m.apply.__module__ for m in MUTANTS} == modules
