"""Deliberate mistakes in saving and restoring checkpoints, each of which must be noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pstrain.coordinator import assigning, decide, propagation, restoring, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.barrier import Barrier
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.orders import RunResult
from pstrain.coordinator.restoring import Restorer
from pstrain.coordinator.rollback import Rollback
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.server_recovery import RecoverySwitch
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import RolledBackError
from pstrain.paramserver import steps
from pstrain.trainer.client import RemoteParameters
from tests.simulation.hard_restores import LateCheckpoints
from tests.simulation.mutants import Mutant

Patch = pytest.MonkeyPatch

RESTORE_MUTANTS: list[Mutant] = []
SYNC_RESTORE_MUTANTS: list[Mutant] = []
SSP_RESTORE_MUTANTS: list[Mutant] = []
FAILING_RESTORE_MUTANTS: list[Mutant] = []
SECOND_LOSS_MUTANTS: list[Mutant] = []
HARD_RESTORE_MUTANTS: list[Mutant] = []
_OF_RULES = {
    "": RESTORE_MUTANTS,
    "sync": SYNC_RESTORE_MUTANTS,
    "ssp": SSP_RESTORE_MUTANTS,
    "failing": FAILING_RESTORE_MUTANTS,
    "second": SECOND_LOSS_MUTANTS,
    "hard": HARD_RESTORE_MUTANTS,
}


def mutant(
    *signs: str, rules: str = ""
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def note(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        _OF_RULES[rules].append(Mutant(apply.__name__, apply, signs))
        return apply

    return note


@mutant("I1", "I7", "I8")
def a_save_waits_for_no_closure(patch: Patch) -> None:
    @contextmanager
    def held(self: Any, _timeout_s: float) -> Iterator[None]:
        core = self._core
        with core.changed:
            core.apply(decide.hold(core.state))
        try:
            yield
        finally:
            with core.changed:
                core.apply(decide.resume(core.state))
                core.make_progress()

    patch.setattr(Barrier, "held", held)


@mutant("C3", rules="sync")
def a_save_ends_a_round_that_is_scheduled_in_part(patch: Patch) -> None:
    original = Barrier.held

    @contextmanager
    def held(self: Any, timeout_s: float) -> Iterator[None]:
        with self._core.changed:
            self._core.seal(self._core.next_id)
        with original(self, timeout_s):
            yield

    patch.setattr(Barrier, "held", held)


@mutant("I7")
def closures_that_ended_are_not_run_again(patch: Patch) -> None:
    patch.setattr(Rollback, "requeue", lambda _self, _parts: 0)


@mutant("I7")
def a_save_forgets_what_ends_after_it(patch: Patch) -> None:
    def forget_all(self: Any, _mark: int) -> None:
        self._core.kept = {}

    patch.setattr(Rollback, "forget", forget_all)


@mutant("I7")
def parts_that_were_undone_are_not_made_again(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def keep_parts(self: Any, event: ev.Event) -> None:
        if not isinstance(event, ev.PartsRestored):
            apply(self, event)

    patch.setattr(CoordinatorState, "apply", keep_parts)


@mutant("I7")
def parts_in_a_checkpoint_are_made_again(patch: Patch) -> None:
    patch.setattr(Rollback, "parts", lambda _self: {})


@mutant("I1", "I7", "I8", "I9")
def everything_goes_back_in_the_old_session(patch: Patch) -> None:
    patch.setattr(RemoteParameters, "change_session", lambda _self, _session: None)


@mutant("session s1 is over", "I1", "I7", "is over")
def who_joins_in_a_restore_stays_in_the_old_session(patch: Patch) -> None:
    patch.setattr(TrainerLink, "_check_session", lambda _self: None)


@mutant("I1", "I7", "I10")
def what_is_given_up_is_not_told(patch: Patch) -> None:
    patch.setattr(decide, "give_up", decide.cancel_all)


@mutant("I11")
def the_program_goes_back_before_everything_else_is_back(patch: Patch) -> None:
    wait_restored = RecoverySwitch.wait_restored

    def at_once(self: RecoverySwitch, error: Exception) -> bool:
        return isinstance(error, RolledBackError) or wait_restored(self, error)

    patch.setattr(RecoverySwitch, "wait_restored", at_once)


@mutant("I1")
def what_ended_beside_a_lost_server_counts(patch: Patch) -> None:
    results = Scheduler.results

    def check_last(self: TrainerLink, ended: list[RunResult]) -> None:
        broken = [end for end in ended if end.error and self._recovery.notice(end.error)]
        if broken and broken[0].error is not None:
            results(self._scheduler, self.index, [end for end in ended if end not in broken])
            raise broken[0].error

    patch.setattr(TrainerLink, "_check_servers", check_last)


@mutant("I11", "I1", "I7")
def a_fit_has_no_last_word(patch: Patch) -> None:
    patch.setattr(RecoverySwitch, "end_restoring", lambda _self, _is_behind: True)


@mutant("I11", "I1", "I7")
def a_restore_may_begin_after_the_last_word(patch: Patch) -> None:
    def end_restoring(self: Restorer, is_behind: Any) -> bool:
        return not self.is_restoring and not is_behind()

    patch.setattr(Restorer, "end_restoring", end_restoring)


@mutant("C3", rules="sync")
def the_mean_is_over_those_who_changed_something_here(patch: Patch) -> None:
    mean = steps._mean_update
    patch.setattr(steps, "_mean_update", lambda updates, _gradients: mean(updates, len(updates)))


@mutant("C3", rules="sync")
def rounds_are_sums(patch: Patch) -> None:
    mean = steps._mean_update
    patch.setattr(steps, "_mean_update", lambda updates, _gradients: mean(updates, 1))


@mutant("C3", rules="sync")
def of_a_row_that_several_change_the_last_counts(patch: Patch) -> None:
    def last(updates: Any, gradients: int) -> Any:
        rows = ((ids, each) for _, ids, each in updates)
        newest = {int(r): s for ids, each in rows for r, s in zip(ids, each, strict=True)}
        ids = np.array(sorted(newest), np.int64)
        total = np.stack([newest[row] for row in sorted(newest)]) / np.float32(gradients)
        return steps.ShardUpdate(updates[0].shard, ids, total.astype(np.float32))

    patch.setattr(steps, "_mean_update", last)


@mutant("C3", rules="sync")
def rounds_are_made_anew_of_whatever_waits(patch: Patch) -> None:
    reopen = decide.reopen

    def forget_rounds(state: Any, were_in: Any, *others: Any) -> Any:
        return reopen(state, dict.fromkeys(were_in), *others)

    patch.setattr(decide, "reopen", forget_rounds)


@mutant("C1", "C3", "I7", "I10", rules="sync")
def a_round_that_a_lost_server_broke_off_stands(patch: Patch) -> None:
    patch.setattr(rounds, "undo_round", lambda _state: ())


@mutant("C2", rules="ssp")
def what_runs_again_is_not_counted(patch: Patch) -> None:
    apply, tick = CoordinatorState.apply, CoordinatorState._tick
    again: set[tuple[int, int]] = set()

    def note_and_apply(self: CoordinatorState, event: ev.Event) -> None:
        if isinstance(event, ev.ClosureReopened):
            again.add((id(self), event.closure))
        apply(self, event)

    def count_first_runs(self: CoordinatorState, closure: int) -> None:
        if (id(self), closure) not in again:
            tick(self, closure)

    patch.setattr(CoordinatorState, "apply", note_and_apply)
    patch.setattr(CoordinatorState, "_tick", count_first_runs)


@mutant("C2", rules="ssp")
def who_comes_back_counts_as_the_furthest(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def join_in_front(self: CoordinatorState, event: ev.Event) -> None:
        apply(self, event)
        if isinstance(event, ev.TrainerJoined):
            furthest = max(trainer.clock for trainer in self.trainers.values())
            self.trainers[event.trainer].clock = furthest

    patch.setattr(CoordinatorState, "apply", join_in_front)


@mutant("I1", "I7", "I8", rules="ssp")
def a_restore_forgets_what_ended_since_its_checkpoint(patch: Patch) -> None:
    def requeue(self: Rollback, parts: Any) -> int:
        self._core.kept = {}
        self._core.apply(decide.reopen(self._core.state, {}, {}, parts))
        return 0

    patch.setattr(Rollback, "requeue", requeue)


@mutant("I7", rules="failing")
def what_was_told_ends_with_another_error(patch: Patch) -> None:
    patch.setattr(propagation, "cancellations_of_others", propagation.cancellations_of_all)


@mutant("I10", rules="failing")
def what_was_told_waits_until_an_error_is_shown(patch: Patch) -> None:
    assign = assigning.assign

    def not_yet(state: CoordinatorState, *ahead: Any) -> decide.Decision:
        return decide.Decision() if state.failed else assign(state, *ahead)

    patch.setattr(assigning, "assign", not_yet)


@mutant("C1", "C3", "I10", rules="second")
def a_round_that_is_made_anew_has_the_number_of_one_that_was(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def use_twice(self: CoordinatorState, event: ev.Event) -> None:
        apply(self, event)
        if isinstance(event, ev.RoundUndone):
            self.round.number -= 1

    patch.setattr(CoordinatorState, "apply", use_twice)


@mutant("was lost once more", rules="hard")
def one_more_loss_ends_a_restore(patch: Patch) -> None:
    patch.setattr(restoring, "_TRIES_MAX", 1)


@mutant("I7", rules="hard")
def a_restore_overlooks_what_is_being_saved(patch: Patch) -> None:
    patch.setattr(LateCheckpoints, "alone", lambda self: self._lock)
