"""Deliberate mistakes about the end of a loop's data, each of which must be noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pstrain.coordinator import decide, exhausted
from pstrain.coordinator import events as ev
from pstrain.coordinator.clocks import Clocks
from pstrain.coordinator.orders import RunResult
from pstrain.coordinator.state import CoordinatorState
from pstrain.coordinator.trainer_interface import TrainerInterface
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
        ended_on = {each: set(met) for each, met in self.ends._ended_on.items()}
        apply(self, event)
        if isinstance(event, ev.TrainerLost):
            self.ends._ended_on = {each: met - {event.trainer} for each, met in ended_on.items()}
            self.ends.trainers = set().union(*self.ends._ended_on.values())

    patch.setattr(CoordinatorState, "apply", keep_ends)


@mutant("I1")
def ends_met_before_a_loss_count_after_it(patch: Patch) -> None:
    meet_end = CoordinatorState._meet_end

    def believe(self: CoordinatorState, event: ev.EndMet) -> None:
        self.running[event.closure].renewals = self.ends.renewals
        meet_end(self, event)

    patch.setattr(CoordinatorState, "_meet_end", believe)


@mutant("I1")
def marks_of_an_end_count_before_its_round(patch: Patch) -> None:
    """They may cover rows of what the trainer has prepared, and it is lost in that round."""
    handle = TrainerInterface._handle_result

    def note(self: TrainerInterface, trainer: int, end: RunResult) -> bool:
        run = self._core.state.running.get(end.closure)
        if end.ended_iterators and run is not None and run.trainer == trainer:
            self._core.trainer_marks.note(trainer, end.marks)
        return handle(self, trainer, end)

    patch.setattr(TrainerInterface, "_handle_result", note)


@mutant("I10")
def ssp_waits_for_exhausted_trainers(patch: Patch) -> None:
    patch.setattr(Clocks, "leave_out", lambda _self, _trainer: None)


@mutant("I10")
def sync_rounds_wait_for_exhausted_trainers(patch: Patch) -> None:
    patch.setattr(exhausted, "slots", lambda state: state.free)
