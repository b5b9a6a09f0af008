"""Tests the simulation: each mutant of delivery is noticed within DELIVERY_SEEDS_MAX seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.noticing import DELIVERY_MODULES, DELIVERY_SEEDS_MAX, noticed_delivery


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    failure = noticed_delivery(mutant)
    assert failure is not None, f"{mutant.name} survived {DELIVERY_SEEDS_MAX} seeds"
    assert any(sign in str(failure) for sign in mutant.signs), failure


def test_at_least_40_mutants_come_from_all_modules() -> None:
    assert len(MUTANTS) >= 40
    assert {m.apply.__module__ for m in MUTANTS} == {each.__name__ for each in DELIVERY_MODULES}
