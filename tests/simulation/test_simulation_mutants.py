"""Tests the simulation: every deliberate mistake in delivery is noticed within 3,000 lives."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.noticing import DELIVERY_LIVES, DELIVERY_MODULES, noticed_delivery


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mistake_is_noticed(mutant: Mutant) -> None:
    failure = noticed_delivery(mutant)
    assert failure is not None, f"{mutant.name} survived {DELIVERY_LIVES} lives"
    assert any(sign in str(failure) for sign in mutant.signs), failure


def test_there_are_enough_mistakes() -> None:
    assert len(MUTANTS) >= 40
    assert {m.apply.__module__ for m in MUTANTS} == {each.__name__ for each in DELIVERY_MODULES}
