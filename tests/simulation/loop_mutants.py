"""Deliberate mistakes about the end of a loop's data, each of which must be noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pstrain.coordinator import decide, exhausted
from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState
from tests.simulation.mutants import Mutant

Patch = pytest.MonkeyPatch

LOOP_MUTANTS: list[Mutant] = []


def mutant(*signs: str) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        LOOP_MUTANTS.append(Mutant(apply.__name__, apply, signs))

    return note


@mutant("I1")
def first_exhausted_trainer_ends_the_loop(patch: Patch) -> None:
    patch.setattr(decide, "meet_end", lambda *_run: ())


@mutant("I1")
def rows_returned_by_a_lost_trainer_are_not_looked_for(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def keep_ends(self: CoordinatorState, event: ev.Event) -> None:
        known = {closure: set(met) for closure, met in self.exhausted_on.items()}
        apply(self, event)
        if isinstance(event, ev.TrainerLost):
            left = {c: met - {event.trainer} for c, met in known.items() if c in self.attempts}
            self.exhausted_on = {closure: met for closure, met in left.items() if met}

    patch.setattr(CoordinatorState, "apply", keep_ends)


@mutant("I10")
def ssp_waits_for_exhausted_trainers(patch: Patch) -> None:
    patch.setattr(exhausted, "slowest", lambda state: state.clocks.slowest)


@mutant("I10")
def sync_rounds_wait_for_exhausted_trainers(patch: Patch) -> None:
    patch.setattr(exhausted, "shunned", lambda _state: set())
