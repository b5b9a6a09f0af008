"""Closures at the end of their trainer's data run where there may be more data, or fail."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pstrain.consistency import ASYNC, Consistency, Ssp, Sync
from pstrain.coordinator import assigning, decide, exhausted, lost_trainers, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import OutOfRangeError
from pstrain.serialization import remote_errors, results
from tests.unit.pstrain.coordinator.scheduling_cases import apply


def begun_state(
    closures: int, trainers: int, rule: Consistency = ASYNC, slots: int = 1
) -> CoordinatorState:
    state = CoordinatorState(rule, range(trainers))
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, slots))
    for closure in range(closures):
        apply(state, decide.schedule(state, closure))
    go_on(state)
    return state


def go_on(state: CoordinatorState) -> list[tuple[int, int]]:
    """Takes all decisions that are due; returns the closures that start, with their trainers."""
    apply(state, rounds.decide_round(state))
    apply(state, exhausted.end_spent(state))
    events = apply(state, assigning.assign(state))
    return [(e.closure, e.trainer) for e in events if isinstance(e, ev.ClosureStarted)]


def meet_end(state: CoordinatorState, *closures: int) -> list[tuple[int, int]]:
    for closure in closures:
        run = state.running[closure]
        apply(state, decide.meet_end(state, closure, run.trainer, run.attempt))
    return go_on(state)


def finish(state: CoordinatorState, closure: int) -> list[tuple[int, int]]:
    run = state.running[closure]
    apply(state, decide.finish(state, closure, run.trainer, run.attempt))
    return go_on(state)


def test_closure_that_meets_end_of_data_runs_on_each_trainer_before_it_fails() -> None:
    state = begun_state(closures=2, trainers=2)
    assert meet_end(state, 0) == []
    assert finish(state, 1) == [(0, 1)]
    assert meet_end(state, 0) == []
    assert state.failed == [0]
    assert state.is_idle


def test_end_of_data_is_not_final_while_another_closure_runs() -> None:
    state = begun_state(closures=3, trainers=1, slots=2)
    assert meet_end(state, 0) == []
    assert not state.failed
    apply(state, decide.silence_trainer(state, 0))
    assert go_on(state) == []
    apply(state, decide.lose_trainer(state, 0, attempts_max=9))
    apply(state, decide.join_trainer(0, 2))
    assert go_on(state) == [(1, 0), (0, 0)]


def test_no_closure_starts_before_closure_at_end_of_all_data_has_failed() -> None:
    state = begun_state(closures=2, trainers=1, slots=2)
    apply(state, decide.schedule(state, 2, trainer=0))
    assert meet_end(state, 0) == []
    assert finish(state, 1) == []
    assert state.failed == [0]
    assert state.is_idle


def test_trainer_loss_makes_data_available_to_exhausted_trainers_again() -> None:
    state = begun_state(closures=4, trainers=3)
    assert meet_end(state, 0) == []
    apply(state, decide.lose_trainer(state, 1, attempts_max=9))
    assert go_on(state) == [(1, 0)]
    assert meet_end(state, 2) == [(0, 2)]
    assert not state.exhausted_on  # closure 2 began before the loss
    assert meet_end(state, 1) == []
    assert state.exhausted_on == {1: {0}}


def test_later_closures_avoid_trainer_on_which_first_waiting_closure_met_end() -> None:
    state = begun_state(closures=8, trainers=2, slots=2)
    assert [run.trainer for run in state.running.values()] == [0, 1, 0, 1]
    assert meet_end(state, 0) == []
    assert list(state.waiting) == [0, 4, 5, 6, 7]
    assert finish(state, 1) == [(0, 1)]
    assert sorted(state.free) == [0]
    assert go_on(state) == [(4, 0)]


def test_exhausted_trainer_is_sent_no_more_closures_than_it_has_slots() -> None:
    state = begun_state(closures=40, trainers=2)
    assert meet_end(state, 0) == []
    assert finish(state, 1) == [(0, 1)]
    apply(state, assigning.assign(state, lambda _: 9))
    assert len(state.trainers[0].running) == 1
    assert len(state.trainers[1].running) == 9


def test_ends_of_data_do_not_count_as_lost_attempts() -> None:
    state = begun_state(closures=1, trainers=9)
    for trainer in range(1, 8):
        assert meet_end(state, 0) == [(0, trainer)]
    apply(state, decide.lose_trainer(state, 7, attempts_max=2))
    assert 0 in state.waiting


@pytest.mark.parametrize("kind", ["bound", "cancelled", "after another's error"])
def test_end_of_data_does_not_move_closure_that_is_bound_or_ends_anyway(kind: str) -> None:
    state = begun_state(closures=2, trainers=2)
    if kind == "bound":
        apply(state, decide.schedule(state, 2, trainer=1))
        assert finish(state, 1) == [(2, 1)]
        assert decide.meet_end(state, 2, 1, 0) == ()
        return
    if kind == "cancelled":
        apply(state, decide.cancel(state, 0, ev.Reason.ASKED))
    else:
        apply(state, decide.fail(state, 1, 1, 0))
    assert decide.meet_end(state, 0, 0, 0) == ()


def test_clock_of_trainer_at_end_of_its_data_is_lifted_to_slowest_of_others() -> None:
    state = begun_state(closures=12, trainers=4, rule=Ssp(9), slots=3)
    for closure in (1, 5, 2):
        apply(state, decide.finish(state, closure, closure % 4, 0))
    apply(state, decide.silence_trainer(state, 3))
    for closure in (0, 9):
        apply(state, decide.meet_end(state, closure, closure % 4, 0))
        assert [state.clocks[trainer] for trainer in range(3)] == [1, 2, 1]


def test_reported_closure_that_meets_end_in_rerun_finishes() -> None:
    state = begun_state(closures=0, trainers=1)
    apply(state, decide.reopen(state, [ev.ClosureReopened(closure=0)], {}))
    assert go_on(state) == [(0, 0)]
    meet_end(state, 0)
    assert state.is_idle
    assert not state.failed
    assert state.finished_count == 1


def test_reported_closure_that_meets_end_runs_elsewhere_despite_errors_of_others() -> None:
    state = begun_state(closures=0, trainers=2)
    apply(state, decide.reopen(state, [ev.ClosureReopened(closure=0)], {}))
    apply(state, decide.schedule(state, 1))
    assert go_on(state) == [(0, 0), (1, 1)]
    apply(state, decide.fail(state, 1, 1, 0))
    assert meet_end(state, 0) == [(0, 1)]


def test_higher_priority_closures_go_first_after_end_of_data() -> None:
    state = CoordinatorState()
    for closure, priority in enumerate((0, 1, 1, 1)):
        apply(state, decide.schedule(state, closure, priority=priority))
    apply(state, decide.join_trainer(0, 2))
    assert go_on(state) == [(1, 0), (2, 0)]
    apply(state, decide.join_trainer(1, 1))
    assert go_on(state) == [(3, 1)]
    assert meet_end(state, 2, 1) == []
    assert list(state.waiting) == [1, 2, 0]
    assert finish(state, 3) == [(1, 1)]


def test_exhausted_trainer_does_not_hold_up_others_under_ssp() -> None:
    state = begun_state(closures=20, trainers=2, rule=Ssp(0))
    for _ in range(6):
        meet_end(state, *(c for c, run in state.running.items() if run.trainer == 0))
        finish(state, *(c for c, run in state.running.items() if run.trainer == 1))
        go_on(state)
    assert state.finished_count == 6


def test_trainer_with_data_runs_closure_of_exhausted_trainer_in_its_round() -> None:
    state = begun_state(closures=2, trainers=2, rule=Sync())
    assert meet_end(state, 0) == []
    apply(state, decide.prepare(state, 1, 1, 0))
    assert go_on(state) == [(0, 1)]
    apply(state, decide.prepare(state, 0, 1, 1))
    assert rounds.decide_round(state) == (ev.RoundDecided(closures=(1, 0)),)


def test_round_is_decided_without_closure_that_met_end_on_all_trainers() -> None:
    state = begun_state(closures=2, trainers=2, rule=Sync())
    apply(state, decide.prepare(state, 1, 1, 0))
    assert meet_end(state, 0) == [(0, 1)]
    assert meet_end(state, 0) == []
    apply(state, rounds.decide_round(state))
    assert list(state.round.decided) == [1]
    apply(state, rounds.end_round(state))
    assert go_on(state) == []
    assert state.failed == [0]
    assert state.is_idle


class Servers:
    """One parameter server, which has decided three closures of a trainer."""

    session = "s"
    key_maps: Any = None

    def fence(self, _trainer: str) -> dict[int, dict[str, Any]]:
        value = base64.b64encode(results.encode(7)).decode()
        error = remote_errors.encode(OutOfRangeError("the dataset is exhausted"), "trainer 0")
        decided = [
            [1, 0, 0, {"value": value}, 0, None],
            [2, 0, 0, {"error": error, "met_end": True}, 0, None],
            [3, 0, 0, {"error": error}, 0, None],
        ]
        return {0: {"decided": decided, "held": [], "rows": {}}}

    def complete(self, _trainer: str, _keys: Any) -> None: ...


def test_closure_that_met_end_is_not_settled_as_decided_when_trainer_is_lost() -> None:
    settlement = lost_trainers.settle_servers(Servers(), "t")
    assert set(settlement.decided) == set(settlement.outcomes) == {1, 3}
