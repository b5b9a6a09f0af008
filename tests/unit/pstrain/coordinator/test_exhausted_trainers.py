"""Closures at the end of their trainer's data run where there may be more data, or fail."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pstrain.consistency import ASYNC, Consistency, Ssp, Sync
from pstrain.coordinator import assigning, decide, exhausted, lost_trainers, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.data_ends import NOTHING, Needs
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import OutOfRangeError
from pstrain.serialization import remote_errors, results
from tests.unit.pstrain.coordinator.scheduling_cases import apply

A, B, AB = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})


def begun_state(
    closures: int,
    trainers: int,
    rule: Consistency = ASYNC,
    slots: int = 1,
    iterators: Needs = NOTHING,
) -> CoordinatorState:
    state = CoordinatorState(rule, range(trainers))
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, slots))
    for closure in range(closures):
        apply(state, decide.schedule(state, closure, iterators=iterators))
    go_on(state)
    return state


def go_on(state: CoordinatorState) -> list[tuple[int, int]]:
    """Takes all decisions that are due; returns the closures that start, with their trainers."""
    apply(state, rounds.decide_round(state))
    apply(state, exhausted.end_spent(state))
    started: list[tuple[int, int]] = []
    while events := apply(state, assigning.assign(state)):
        started += [(e.closure, e.trainer) for e in events if isinstance(e, ev.ClosureStarted)]
    return started


def meet_end(
    state: CoordinatorState, *closures: int, iterators: Needs = A
) -> list[tuple[int, int]]:
    for closure in closures:
        run = state.running[closure]
        apply(state, decide.meet_end(state, closure, run.trainer, run.attempt, iterators))
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


def test_closures_at_the_end_of_all_data_fail_in_order_and_not_while_scheduling_is_held() -> None:
    state = begun_state(closures=3, trainers=1, slots=3)
    apply(state, decide.hold())
    # Of two kinds of needs, so they wait in two lines.
    assert meet_end(state, 2, iterators=B) == []
    assert meet_end(state, 1, 0) == []
    assert not state.failed
    apply(state, decide.resume(state))
    events = exhausted.end_spent(state)
    assert [e.closure for e in events if isinstance(e, ev.ClosureFailed)] == [0, 1, 2]
    apply(state, events)
    assert state.is_idle


def test_slots_of_an_empty_queue_are_all_that_are_free() -> None:
    state = begun_state(closures=2, trainers=2)
    apply(state, decide.meet_end(state, 0, 0, state.running[0].attempt, A))
    for closure in (0, 1):
        apply(state, decide.cancel(state, closure, ev.Reason.ASKED))
    assert state.ends.trainers
    assert not state.waiting
    assert exhausted.slots(state) is state.free
    assert list(exhausted.leading(state)) == []


def test_trainer_loss_makes_data_available_to_exhausted_trainers_again() -> None:
    state = begun_state(closures=4, trainers=3)
    assert meet_end(state, 0) == []
    apply(state, decide.lose_trainer(state, 1, attempts_max=9))
    assert go_on(state) == [(1, 0)]
    assert meet_end(state, 2) == [(0, 2)]
    assert not state.ends.trainers  # closure 2 began before the loss
    assert meet_end(state, 1) == [(2, 0)]
    assert state.ends.at_end(A) == {0}


@pytest.mark.parametrize("iterators", [NOTHING, A, AB])
def test_closures_avoid_trainer_that_is_at_the_end_of_all_they_read(iterators: Needs) -> None:
    state = begun_state(closures=8, trainers=2, slots=2, iterators=iterators)
    assert [run.trainer for run in state.running.values()] == [0, 1, 0, 1]
    assert meet_end(state, 0) == []
    assert meet_end(state, 2) == []
    assert list(state.waiting) == [0, 2, 4, 5, 6, 7]
    assert finish(state, 1) == [(0, 1)]
    # Closures of which it is not known that they need what has ended start anywhere.
    others = [(4, 0), (5, 0)]
    assert finish(state, 3) == ([(2, 1)] if iterators == A else [(2, 1), *others])


def test_trainer_is_asked_once_for_data_that_have_ended_there() -> None:
    state = begun_state(closures=300, trainers=10, slots=2, iterators=A)
    runs = 20
    while not state.failed:
        closure, run = next(iter(state.running.items()))
        has_row = run.trainer == 3 and state.finished_count < 100
        runs += len((finish if has_row else meet_end)(state, closure))
    assert state.is_idle
    assert runs == 100 + 20
    assert state.failed_count == 2
    assert state.cancelled_count == 198


def test_closure_that_did_not_run_yet_does_once_its_data_have_ended_everywhere() -> None:
    """It may do without them; one that only met the end fails, and cancels the others."""
    state = begun_state(closures=4, trainers=2, slots=2, iterators=A)
    assert meet_end(state, 0, 1) == []
    apply(state, decide.schedule(state, 4, iterators=A))
    assert go_on(state) == []
    for closure in (0, 1):
        apply(state, decide.cancel(state, closure, ev.Reason.ASKED))
    assert go_on(state) == [(4, 0)]
    assert finish(state, 4) == []
    assert not state.failed


def test_closure_runs_where_one_of_the_iterators_has_data_left() -> None:
    state = begun_state(closures=3, trainers=3)
    assert meet_end(state, 0, iterators=AB) == []
    assert meet_end(state, 1, iterators=A) == [(0, 1)]
    assert finish(state, 0) == []
    assert finish(state, 2) == [(1, 2)]


def test_closure_that_reads_another_iterator_on_each_trainer_is_tried_once_on_each() -> None:
    state = begun_state(closures=1, trainers=4)
    for trainer, iterators in ((1, A), (2, B), (3, A), (0, B)):
        assert meet_end(state, 0, iterators=iterators) == [(0, trainer)]
    assert meet_end(state, 0, iterators=A) == []
    assert state.failed == [0]
    assert not state.ends._ended_on.keys() - {"a", "b"}
    assert len(state.free._views) == len(state.ends._elsewhere) == len(state.ends._at_end)


@pytest.mark.parametrize("news", ["an iterator is made", "errors are reported"])
def test_trainers_are_asked_again_once_there_may_be_data(news: str) -> None:
    state = begun_state(closures=3, trainers=2, iterators=A)
    assert meet_end(state, 0) == []
    if news == "an iterator is made":
        apply(state, decide.renew_data(state))
        assert go_on(state) == [(0, 0)]
    else:
        assert meet_end(state, 1) == []
        assert state.failed
        apply(state, decide.report_errors(state))
        apply(state, decide.schedule(state, 3, iterators=A))
        assert go_on(state) == [(3, 0)]
    assert not state.ends.trainers
    assert not state.free._views
    assert not decide.renew_data(state)


def test_data_may_come_back_any_number_of_times() -> None:
    state = begun_state(closures=2, trainers=2)
    for iterators in (A, B, A):
        assert meet_end(state, 0, iterators=iterators) == []
        apply(state, decide.renew_data(state))
        assert go_on(state) == [(0, 0)]


@pytest.mark.parametrize("rule", [ASYNC, Sync(), Ssp(1)])
def test_end_met_before_a_late_release_does_not_count(rule: Consistency) -> None:
    """What a trainer held that was lost before it said what it reads is given back late."""
    state = begun_state(closures=2, trainers=2, rule=rule, iterators=A)
    assert meet_end(state, 0) == []
    apply(state, decide.begin_release())
    assert meet_end(state, 1) == [], "both trainers are at the end, but data will come back"
    assert not state.failed
    apply(state, decide.end_release())
    assert sorted(closure for closure, _ in go_on(state)) == [0, 1]
    assert state.is_settled == state.is_quiet
    meet_end(state, 0, 1)
    assert state.failed


def test_end_that_a_run_reports_after_a_late_release_is_an_older_one() -> None:
    state = begun_state(closures=1, trainers=1, iterators=A)
    apply(state, decide.begin_release())
    apply(state, decide.end_release())
    assert meet_end(state, 0) == [(0, 0)]
    assert meet_end(state, 0) == []
    assert state.failed == [0]


def test_nothing_is_settled_before_all_releases_have_ended() -> None:
    state = begun_state(closures=0, trainers=1)
    apply(state, decide.begin_release())
    apply(state, decide.begin_release())
    apply(state, decide.end_release())
    assert not state.is_settled
    apply(state, decide.end_release())
    assert state.is_settled


def test_late_trainer_is_asked_before_the_data_count_as_used_up() -> None:
    state = begun_state(closures=2, trainers=2, iterators=A)
    assert meet_end(state, 0) == []
    apply(state, decide.join_trainer(2, 1))
    assert go_on(state) == [(0, 2)]
    assert meet_end(state, 1) == []
    apply(state, decide.join_trainer(3, 1))
    assert go_on(state) == [(1, 3)]


def test_trainer_at_the_end_of_other_data_runs_what_reads_none() -> None:
    state = begun_state(closures=2, trainers=2, iterators=A)
    assert meet_end(state, 0) == []
    apply(state, decide.schedule(state, 2, iterators=A))
    apply(state, decide.schedule(state, 3))
    assert finish(state, 1) == [(0, 1)]
    apply(state, decide.cancel(state, 2, ev.Reason.ASKED))
    assert go_on(state) == [(3, 0)]


def test_exhausted_trainer_is_sent_no_closures_ahead() -> None:
    state = begun_state(closures=40, trainers=2, iterators=A)
    assert meet_end(state, 0) == []
    assert finish(state, 1) == [(0, 1)]
    apply(state, assigning.assign(state, lambda _: 9))
    assert [len(trainer.running) for trainer in state.trainers.values()] == [0, 9]


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
        assert decide.meet_end(state, 2, 1, 0, A) == ()
        return
    if kind == "cancelled":
        apply(state, decide.cancel(state, 0, ev.Reason.ASKED))
    else:
        apply(state, decide.fail(state, 1, 1, 0))
    assert decide.meet_end(state, 0, 0, 0, A) == ()


def test_clock_of_trainer_at_end_of_its_data_is_lifted_to_slowest_of_others() -> None:
    state = begun_state(closures=12, trainers=4, rule=Ssp(9), slots=3)
    for closure in (1, 5, 2):
        apply(state, decide.finish(state, closure, closure % 4, 0))
    apply(state, decide.silence_trainer(state, 3))
    for closure in (0, 9):
        apply(state, decide.meet_end(state, closure, closure % 4, 0, A))
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
    assert list(state.waiting) == [2, 1, 0]
    assert finish(state, 3) == [(2, 1)]


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


@pytest.mark.parametrize("is_undone", [False, True])
def test_round_made_again_ends_without_closure_for_which_no_data_are_left(is_undone: bool) -> None:
    """After a restore readers share the rows in another way, so there may be fewer elements."""
    state = begun_state(closures=2 * is_undone, trainers=2, rule=Sync(), iterators=A)
    for closure in list(state.running):
        apply(state, decide.prepare(state, closure, state.running[closure].trainer, 0))
    apply(state, rounds.decide_round(state))
    again = [ev.ClosureReopened(closure=c, round=0, iterators=A) for c in (0, 1)]
    apply(state, decide.reopen(state, [] if is_undone else again, {}))
    assert go_on(state) == [(0, 0), (1, 1)]
    apply(state, decide.prepare(state, 0, 0, state.running[0].attempt))
    assert meet_end(state, 1) == [(1, 0)]
    assert meet_end(state, 1) == []
    assert list(state.round.decided) == [0]
    apply(state, rounds.end_round(state))
    assert go_on(state) == []
    assert state.is_idle
    assert state.failed == [1] * is_undone
    assert state.finished_count == 2 - is_undone


def test_late_closure_that_met_an_end_elsewhere_looks_for_data_anew() -> None:
    """The element that its late run took goes back to its trainer's iterator."""
    state = begun_state(closures=4, trainers=3, rule=Sync(1), iterators=A)
    for closure in (0, 1):
        apply(state, decide.prepare(state, closure, closure, 0))
    go_on(state)  # closure 2 is late
    apply(state, rounds.end_round(state))
    assert go_on(state) == [(2, 0), (3, 1)]
    assert meet_end(state, 2) == []
    apply(state, decide.prepare(state, 3, 1, 0))
    assert go_on(state) == [(2, 1)]
    apply(state, decide.schedule(state, 4, iterators=A))
    apply(state, rounds.end_drop(state, 2, 2, 0))
    assert go_on(state) == [(4, 2)]
    apply(state, decide.prepare(state, 4, 2, 0))
    go_on(state)
    assert state.round.decided.keys() == {3, 4}
    assert state.trainers[1].dropping == {2: 2}
    assert state.ends.at_end(A) == {0}
    assert not any(2 in closures for _, closures in state.ends.waiting())


def test_trainer_at_an_end_whose_run_is_dropped_is_not_waited_for() -> None:
    state = begun_state(closures=1, trainers=2, rule=Sync(1))
    assert meet_end(state, 0) == [(0, 1)]
    for closure, attempt in ((0, 1), (2, 0)):
        apply(state, decide.prepare(state, closure, 1, attempt))
        go_on(state)
        apply(state, rounds.end_round(state))
        if closure == 0:
            for new in (1, 2):
                apply(state, decide.schedule(state, new))
            assert go_on(state) == [(1, 0), (2, 1)]
    assert state.trainers[0].dropping == {1: 0}
    assert state.clocks.slowest == state.clocks[1] == 2


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
