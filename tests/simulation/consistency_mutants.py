"""Deliberate mistakes in rounds and in bounded staleness, each of which must be noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pstrain.consistency import Ssp
from pstrain.coordinator import applying, decide, rounds
from pstrain.coordinator.core import Core
from pstrain.coordinator.state import CoordinatorState
from pstrain.coordinator.trainer_interface import RoundOrders
from pstrain.paramserver.commits import Commits
from pstrain.trainer.staging import ClosureRun
from tests.simulation.mutants import Mutant
from tests.simulation.world import STAGE

Patch = pytest.MonkeyPatch

SYNC_MUTANTS: list[Mutant] = []
SSP_MUTANTS: list[Mutant] = []


def mutant(where: list[Mutant], *signs: str) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        where.append(Mutant(apply.__name__, apply, signs))

    return note


# Rounds


@mutant(SYNC_MUTANTS, "I1", "I7", "I10")
def late_runs_do_not_give_rows_back(patch: Patch) -> None:
    patch.setattr(ClosureRun, "give_back", lambda _self: None)


@mutant(SYNC_MUTANTS, "I7", "I1", "I8", "C1")
def aborted_changes_are_applied(patch: Patch) -> None:
    original = Commits.abort

    def abort(self: Any, trainer: str, key: Any, tries: int) -> None:
        _, payload = self._live(trainer).held.get(key, (0, ()))
        original(self, trainer, key, tries)
        for change in payload:
            change()

    patch.setattr(Commits, "abort", abort)


@mutant(SYNC_MUTANTS, "I7", "I8")
def rounds_end_before_servers_apply_them(patch: Patch) -> None:
    def run(self: Any) -> None:
        while (order := self._scheduler.rounds.next_order()) is not None:
            self._scheduler.rounds.applied(order)
            self._servers.exchange(applying.messages_of(order))

    patch.setattr(applying.RoundApplier, "_run", run)


@mutant(SYNC_MUTANTS, "was taken for lost", "not prepared here")
def lost_trainers_are_fenced_within_a_round(patch: Patch) -> None:
    patch.setattr(RoundOrders, "wait_for_round", lambda _self, _timeout_s, _is_undone: None)


@mutant(SYNC_MUTANTS, "not prepared here", "I7")
def applied_changes_are_applied_again(patch: Patch) -> None:
    patch.setattr(Commits, "_is_applied", lambda _self, _key: False)


@mutant(SYNC_MUTANTS, "was taken for lost", "I7")
def closures_of_a_decided_round_rerun_when_their_trainer_is_lost(patch: Patch) -> None:
    def held_by(state: Any, trainer: int) -> list[tuple[int, Any]]:
        this = state.round
        begun = (*state.running.items(), *this.prepared.items(), *this.decided.items())
        return [(closure, run) for closure, run in begun if run.trainer == trainer]

    patch.setattr(decide, "_held_by", held_by)
    patch.setattr(RoundOrders, "wait_for_round", lambda _self, _timeout_s, _is_undone: None)


@mutant(SYNC_MUTANTS, "C1")
def gradient_mean_is_over_all_trainers(patch: Patch) -> None:
    original = applying.messages_of

    def messages_of(order: Any) -> Any:
        found = original(order)
        return {
            ps: ({**header, "gradients": STAGE.world.checker.trainers}, body)
            for ps, (header, body) in found.items()
        }

    patch.setattr(applying, "messages_of", messages_of)


@mutant(SYNC_MUTANTS, "C1")
def rounds_apply_closures_in_arrival_order(patch: Patch) -> None:
    original = Core._order_round

    def order_round(self: Any) -> None:
        original(self)
        arrived = list(self.state.round.decided)
        self.order.parts.sort(key=lambda part: arrived.index(part[0]))

    patch.setattr(Core, "_order_round", order_round)


@mutant(SYNC_MUTANTS, "C1")
def closures_are_assigned_in_reverse_trainer_order(patch: Patch) -> None:
    original = rounds.next_trainers

    def next_trainers(state: Any, rule: Any) -> list[int]:
        return original(state, rule)[::-1]

    patch.setattr(rounds, "next_trainers", next_trainers)


@mutant(SYNC_MUTANTS, "I10")
def partial_rounds_are_never_sealed(patch: Patch) -> None:
    patch.setattr(rounds, "seal", lambda _state, _below: ())


# Bounded staleness


@mutant(SSP_MUTANTS, "C2")
def ssp_does_not_wait_for_the_slowest_trainer(patch: Patch) -> None:
    patch.setattr(Ssp, "may_start", lambda _self, _finished, _running, _slowest: True)


@mutant(SSP_MUTANTS, "C2")
def ssp_does_not_count_running_closures(patch: Patch) -> None:
    def may_start(self: Ssp, finished: int, _running: int, slowest: int) -> bool:
        return finished - slowest <= self.staleness

    patch.setattr(Ssp, "may_start", may_start)


@mutant(SSP_MUTANTS, "I10", "C2")
def ssp_waits_for_lost_trainers(patch: Patch) -> None:
    clocks: dict[tuple[int, int], int] = {}

    def slowest(self: CoordinatorState) -> int:
        me = id(self)
        for index, trainer in self.trainers.items():
            clocks[me, index] = trainer.clock
        return min((clock for (it, _), clock in clocks.items() if it == me), default=0)

    patch.setattr(CoordinatorState, "slowest", property(slowest))
