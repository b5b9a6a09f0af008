"""Deliberate mistakes in saving and restoring checkpoints, each of which must be noticed."""

from __future__ import annotations

import dataclasses
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
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.coordinator.state import CoordinatorState
from pstrain.coordinator.trainer_interface import TrainerInterface
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
def save_does_not_wait_for_running_closures(patch: Patch) -> None:
    @contextmanager
    def held(self: Any, _timeout_s: float) -> Iterator[None]:
        core = self._core
        with core.changed:
            core.apply(decide.hold())
        try:
            yield
        finally:
            with core.changed:
                core.apply(decide.resume(core.state))
                core.make_progress()

    patch.setattr(Barrier, "held", held)


@mutant("C3", rules="sync")
def save_seals_a_partly_scheduled_round(patch: Patch) -> None:
    original = Barrier.held

    @contextmanager
    def held(self: Any, timeout_s: float) -> Iterator[None]:
        with self._core.changed:
            self._core.seal(self._core.next_id)
        with original(self, timeout_s):
            yield

    patch.setattr(Barrier, "held", held)


@mutant("I7")
def restore_does_not_requeue_ended_closures(patch: Patch) -> None:
    patch.setattr(Rollback, "requeue", lambda _self, _parts: 0)


@mutant("I7")
def save_forgets_closures_that_end_after_it(patch: Patch) -> None:
    def forget_all(self: Any, _mark: int) -> None:
        self._core.kept = {}

    patch.setattr(Rollback, "forget", forget_all)


@mutant("I7")
def undone_parts_still_count_as_made(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def keep_parts(self: Any, event: ev.Event) -> None:
        if not isinstance(event, ev.PartsRestored):
            apply(self, event)

    patch.setattr(CoordinatorState, "apply", keep_parts)


@mutant("I7")
def restore_forgets_the_parts_in_a_checkpoint(patch: Patch) -> None:
    patch.setattr(Rollback, "parts", lambda _self: {})


@mutant("I1", "I7", "I8", "I9")
def restore_keeps_the_old_session(patch: Patch) -> None:
    patch.setattr(RemoteParameters, "change_session", lambda _self, _session: None)


@mutant("session s1 is over", "I1", "I7", "is over")
def trainer_joining_in_a_restore_keeps_the_old_session(patch: Patch) -> None:
    patch.setattr(TrainerLink, "_check_session", lambda _self: None)


@mutant("I1", "I7", "I10")
def give_up_does_not_stop_new_closures(patch: Patch) -> None:
    patch.setattr(decide, "give_up", decide.cancel_all)


@mutant("I11")
def program_rolls_back_before_the_restore_is_complete(patch: Patch) -> None:
    wait_rolled_back = ServerRecovery.wait_rolled_back

    def at_once(self: ServerRecovery, error: Exception) -> bool:
        if not isinstance(error, RolledBackError):
            return wait_rolled_back(self, error)
        self._scheduler.rollback.forget_given_up()
        return True

    patch.setattr(ServerRecovery, "wait_rolled_back", at_once)


@mutant("I1")
def results_sent_with_a_lost_server_error_count(patch: Patch) -> None:
    results = TrainerInterface.results

    def check_last(self: TrainerLink, ended: list[RunResult]) -> None:
        broken = [end for end in ended if end.error and self._recovery.notice(end.error)]
        if broken and broken[0].error is not None:
            others = [end for end in ended if end not in broken]
            results(self._scheduler.trainers, self.index, others)
            raise broken[0].error

    patch.setattr(TrainerLink, "_check_servers", check_last)


@mutant("I11", "I1", "I7")
def fit_ends_although_a_restore_is_due(patch: Patch) -> None:
    patch.setattr(ServerRecovery, "end_restoring", lambda _self, _is_behind: True)


@mutant("I11", "I1", "I7")
def restore_may_begin_after_the_end_of_fit(patch: Patch) -> None:
    def end_restoring(self: Restorer, is_behind: Any) -> bool:
        return not self.is_restoring and not is_behind()

    patch.setattr(Restorer, "end_restoring", end_restoring)


@mutant("C3", rules="sync")
def gradient_mean_is_over_the_updates_of_one_server(patch: Patch) -> None:
    mean = steps._mean_update
    patch.setattr(steps, "_mean_update", lambda updates, _gradients: mean(updates, len(updates)))


@mutant("C3", rules="sync")
def rounds_sum_gradients(patch: Patch) -> None:
    mean = steps._mean_update
    patch.setattr(steps, "_mean_update", lambda updates, _gradients: mean(updates, 1))


@mutant("C3", rules="sync")
def last_gradient_of_a_shared_row_wins(patch: Patch) -> None:
    def last(updates: Any, gradients: int) -> Any:
        rows = ((ids, each) for _, ids, each in updates)
        newest = {int(r): s for ids, each in rows for r, s in zip(ids, each, strict=True)}
        ids = np.array(sorted(newest), np.int64)
        total = np.stack([newest[row] for row in sorted(newest)]) / np.float32(gradients)
        return steps.ShardUpdate(updates[0].shard, ids, total.astype(np.float32))

    patch.setattr(steps, "_mean_update", last)


@mutant("C3", rules="sync")
def requeued_closures_forget_their_rounds(patch: Patch) -> None:
    reopen = decide.reopen

    def forget_rounds(state: Any, ended: Any, parts: Any) -> Any:
        return reopen(state, [dataclasses.replace(each, round=None) for each in ended], parts)

    patch.setattr(decide, "reopen", forget_rounds)


@mutant("C1", "C3", "I7", "I10", rules="sync")
def interrupted_round_is_not_undone(patch: Patch) -> None:
    patch.setattr(rounds, "undo_round", lambda _state: ())


@mutant("C2", rules="ssp")
def rerun_closures_do_not_advance_clocks(patch: Patch) -> None:
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
def joining_trainer_gets_the_furthest_clock(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def join_in_front(self: CoordinatorState, event: ev.Event) -> None:
        apply(self, event)
        if isinstance(event, ev.TrainerJoined):
            clocks = self.clocks
            clocks[event.trainer] = max(clocks[each] for each in self.trainers if each in clocks)

    patch.setattr(CoordinatorState, "apply", join_in_front)


@mutant("I1", "I7", "I8", rules="ssp")
def restore_forgets_closures_ended_since_its_checkpoint(patch: Patch) -> None:
    def requeue(self: Rollback, parts: Any) -> int:
        self._core.kept = {}
        self._core.apply(decide.reopen(self._core.state, [], parts))
        return 0

    patch.setattr(Rollback, "requeue", requeue)


@mutant("I7", rules="failing")
def reported_closures_are_cancelled_by_another_error(patch: Patch) -> None:
    patch.setattr(propagation, "cancellations_of_others", propagation.cancellations_of_all)


@mutant("I10", rules="failing")
def assignment_waits_until_an_error_is_raised(patch: Patch) -> None:
    assign = assigning.assign

    def not_yet(state: CoordinatorState, *ahead: Any) -> ev.Events:
        return () if state.failed else assign(state, *ahead)

    patch.setattr(assigning, "assign", not_yet)


@mutant("C1", "C3", "I10", rules="second")
def undone_round_reuses_its_number(patch: Patch) -> None:
    apply = CoordinatorState.apply

    def use_twice(self: CoordinatorState, event: ev.Event) -> None:
        apply(self, event)
        if isinstance(event, ev.RoundUndone):
            self.round.number -= 1

    patch.setattr(CoordinatorState, "apply", use_twice)


@mutant("was lost once more", rules="hard")
def restore_is_tried_only_once(patch: Patch) -> None:
    patch.setattr(restoring, "_TRIES_MAX", 1)


@mutant("I7", rules="hard")
def restore_ignores_a_save_in_progress(patch: Patch) -> None:
    patch.setattr(LateCheckpoints, "alone", lambda self: self._lock)


@mutant("I1", "I7", rules="failing")
def services_are_told_of_lost_trainers_before_servers_are_asked(patch: Patch) -> None:
    original = TrainerLink._settle_loss

    def settle_loss(self: Any) -> None:
        self._scheduler.trainers.record_settled(self._name, {})
        original(self)

    patch.setattr(TrainerLink, "_settle_loss", settle_loss)
