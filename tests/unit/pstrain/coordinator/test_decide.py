"""Every closure ends once, however trainers join, leave, fail and repeat messages."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pstrain.coordinator import assigning, decide, exhausted
from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState
from tests.scheduler_invariants import check_invariants
from tests.unit.pstrain.coordinator.scheduling_cases import apply, join_warm, running_state, started

ATTEMPTS_MAX = 3


def reopened(*closures: int) -> list[ev.ClosureReopened]:
    return [ev.ClosureReopened(closure=closure) for closure in closures]


def test_short_closures_queue_at_trainers_beyond_their_slots() -> None:
    state = CoordinatorState()
    for trainer in range(2):
        join_warm(state, trainer, 2)
    for closure in range(400):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda closure: 128 if closure < 300 else 0))
    assert [len(t.running) for t in state.trainers.values()] == [128] * 2
    check_invariants(state)
    while state.running:
        closure, run = next(iter(state.running.items()))
        apply(state, decide.finish(state, closure, run.trainer, run.attempt))
        check_invariants(state)
    assert sorted(state.free) == [0, 0, 1, 1]
    apply(state, assigning.assign(state, lambda closure: 128 if closure < 300 else 0))
    assert len(state.running) == 44
    check_invariants(state)


def test_no_closure_queues_at_trainer_that_has_just_joined() -> None:
    state = CoordinatorState()
    join_warm(state, 0, 2)
    apply(state, decide.join_trainer(1, 2))
    for closure in range(40):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda _: 8))
    assert [len(t.running) for t in state.trainers.values()] == [8, 2]
    for closure in list(state.trainers[1].running):
        apply(state, decide.finish(state, closure, 1, 0))
    apply(state, assigning.assign(state, lambda _: 8))
    assert [len(t.running) for t in state.trainers.values()] == [8, 8]


def test_no_closure_queues_at_trainer_taken_for_lost() -> None:
    state = CoordinatorState()
    for trainer in range(2):
        join_warm(state, trainer, 1)
    apply(state, decide.silence_trainer(state, 1))
    for closure in range(9):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda _: 8))
    assert [len(t.running) for t in state.trainers.values()] == [8, 0]


def test_queue_at_trainer_is_limited_by_allowance_of_closure() -> None:
    state = CoordinatorState()
    join_warm(state, 0, 2)
    for closure in range(20):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda closure: 5 if closure < 10 else 9))
    assert len(state.running) == 5
    apply(state, assigning.assign(state, lambda _: 9))
    assert len(state.running) == 9
    apply(state, assigning.assign(state, lambda _: 1))
    assert len(state.running) == 9


def test_lightly_loaded_trainer_is_ready_only_while_no_closure_waits() -> None:
    state = running_state(closures=8, trainers=1, slots=9)
    assert not state.has_ready(3)
    apply(state, decide.join_trainer(1, 9))
    assert state.has_ready(3)
    apply(state, decide.schedule(state, 8))
    assert not state.has_ready(3)
    apply(state, assigning.assign(state))
    assert state.has_ready(3)
    apply(state, decide.silence_trainer(state, 1))
    assert not state.has_ready(3)


def test_short_closure_returned_from_lost_trainer_takes_slot() -> None:
    state = CoordinatorState()
    join_warm(state, 0, 1)
    for closure in range(3):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda _: 128))
    assert len(state.running) == 3
    apply(state, decide.lose_trainer(state, 0, attempts_max=5))
    join_warm(state, 1, 1)
    apply(state, assigning.assign(state, lambda _: 128))
    assert list(state.running) == [0]
    check_invariants(state)


def test_closures_start_oldest_first_on_slots_in_turn() -> None:
    state = CoordinatorState()
    for trainer in (7, 8):
        apply(state, decide.join_trainer(trainer, 1))
    for closure in range(3):
        apply(state, decide.schedule(state, closure))
    assert started(apply(state, assigning.assign(state))) == [(0, 7, 0), (1, 8, 0)]
    assert list(state.waiting) == [2]


def test_closure_starts_on_trainer_that_runs_fewest() -> None:
    state = running_state(closures=5, trainers=2, slots=3)
    assert [list(t.running) for t in state.trainers.values()] == [[0, 2, 4], [1, 3]]
    apply(state, decide.join_trainer(2, 3))
    for closure in range(5, 8):
        apply(state, decide.schedule(state, closure))
    events = apply(state, assigning.assign(state))
    assert started(events) == [(5, 2, 0), (6, 2, 0), (7, 1, 0)]


def test_closures_of_lost_trainer_run_next_in_original_order() -> None:
    state = running_state(closures=5, trainers=1, slots=3)
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    assert list(state.waiting) == [0, 1, 2, 3, 4]
    apply(state, decide.join_trainer(1, 2))
    assert started(apply(state, assigning.assign(state))) == [(0, 1, 1), (1, 1, 1)]


def test_late_results_of_lost_trainer_are_ignored() -> None:
    state = running_state(closures=1, trainers=1)
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    apply(state, decide.join_trainer(0, 1))
    apply(state, assigning.assign(state))
    assert decide.finish(state, closure=0, trainer=0, attempt=0) == ()
    assert decide.fail(state, closure=0, trainer=0, attempt=0) == ()
    apply(state, decide.finish(state, closure=0, trainer=0, attempt=1))
    assert state.is_idle
    assert state.finished_count == 1


def test_error_cancels_waiting_closures_and_lets_running_closures_end() -> None:
    state = running_state(closures=4, trainers=2)
    events = apply(state, decide.fail(state, closure=0, trainer=0, attempt=0))
    assert [e.closure for e in events if isinstance(e, ev.ClosureCancelled)] == [2, 3]
    assert 1 in state.running
    assert decide.report_errors(state) == ()
    apply(state, decide.finish(state, closure=1, trainer=1, attempt=0))
    apply(state, decide.report_errors(state))
    assert state.failed == []
    apply(state, decide.schedule(state, 9))
    assert [c for c, _, _ in started(apply(state, assigning.assign(state)))] == [9]


def test_closure_lost_while_errors_wait_is_cancelled() -> None:
    state = running_state(closures=2, trainers=2)
    apply(state, decide.fail(state, closure=0, trainer=0, attempt=0))
    lost = apply(state, decide.lose_trainer(state, 1, attempts_max=ATTEMPTS_MAX))
    assert cancelled(lost) == [1]
    assert state.is_idle


def test_closure_scheduled_before_errors_are_reported_is_cancelled() -> None:
    state = running_state(closures=2, trainers=2)
    apply(state, decide.fail(state, closure=0, trainer=0, attempt=0))
    events = apply(state, decide.schedule(state, 5))
    assert events[-1] == ev.ClosureCancelled(closure=5)


def test_closure_that_loses_trainers_attempts_max_times_fails() -> None:
    state = running_state(closures=2, trainers=1)
    for trainer in range(ATTEMPTS_MAX):
        events = apply(state, decide.lose_trainer(state, trainer, attempts_max=ATTEMPTS_MAX))
        apply(state, decide.join_trainer(trainer + 1, 1))
        apply(state, assigning.assign(state))
    assert ev.ClosureFailed(closure=0) in events
    assert ev.ClosureCancelled(closure=1) in events
    assert state.is_idle


def test_closure_of_lost_trainer_that_servers_had_decided_has_ended() -> None:
    state = running_state(closures=4, trainers=1, slots=3)
    decided = {0: decide.DecidedClosure(0, 1, has_ended=True), 1: decide.DecidedClosure(0, 2)}
    apply(state, decide.silence_trainer(state, 0))
    assert decide.finish(state, 2, 0, 0) == ()
    assert assigning.assign(state) == ()
    apply(state, decide.lose_trainer(state, 0, decided, attempts_max=ATTEMPTS_MAX))
    assert list(state.waiting) == [1, 2, 3]
    assert (state.finished_count, state.lost_count) == (1, 1)
    assert state.parts == {1: 2}
    apply(state, decide.join_trainer(0, 3))
    apply(state, assigning.assign(state))
    apply(state, decide.finish(state, 1, 0, 1))
    assert state.parts == {}


def test_closure_of_lost_trainer_with_decided_error_fails() -> None:
    state = running_state(closures=3, trainers=1, slots=2)
    decided = {0: decide.DecidedClosure(0, 1, has_ended=True, is_error=True)}
    apply(state, decide.silence_trainer(state, 0))
    events = apply(state, decide.lose_trainer(state, 0, decided, attempts_max=ATTEMPTS_MAX))
    assert ev.ClosureFailed(closure=0) in events
    assert {e.closure for e in events if isinstance(e, ev.ClosureCancelled)} == {1, 2}
    assert state.is_idle


def test_decided_end_of_earlier_run_does_not_end_closure() -> None:
    state = running_state(closures=1, trainers=1)
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    apply(state, decide.join_trainer(0, 1))
    apply(state, assigning.assign(state))
    decided = {0: decide.DecidedClosure(attempt=0, parts=0, has_ended=True)}
    apply(state, decide.lose_trainer(state, 0, decided, attempts_max=ATTEMPTS_MAX))
    assert list(state.waiting) == [0]
    assert state.finished_count == 0


def test_no_closure_starts_until_every_hold_is_resumed() -> None:
    state = running_state(closures=3, trainers=1)
    for _ in range(2):
        apply(state, decide.hold())
    apply(state, decide.join_trainer(1, 1))
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.lose_trainer(state, 1, attempts_max=ATTEMPTS_MAX))
    apply(state, decide.finish(state, closure=0, trainer=0, attempt=0))
    assert state.is_settled
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.resume(state))
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.resume(state))
    assert started(apply(state, assigning.assign(state))) == [(1, 0, 0)]
    assert apply(state, decide.resume(state)) == ()


def test_silenced_trainer_keeps_state_from_being_settled() -> None:
    state = running_state(closures=0, trainers=1)
    assert state.is_settled
    apply(state, decide.silence_trainer(state, 0))
    assert not state.is_settled
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    assert state.is_settled


def test_reopened_closures_run_again_before_others() -> None:
    state = running_state(closures=4, trainers=1)
    for closure in (0, 1):
        apply(state, decide.finish(state, closure=closure, trainer=0, attempt=0))
        apply(state, assigning.assign(state))
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    apply(state, decide.reopen(state, reopened(1, 0, 2), {}))
    assert list(state.waiting) == [0, 1, 2, 3]


def cancelled(events: ev.Events) -> list[int]:
    return [event.closure for event in events if isinstance(event, ev.ClosureCancelled)]


def state_with_rerun(ended: int, *, trainers: int) -> CoordinatorState:
    """Returns a state whose first ``ended`` closures run again after a restore, before two more."""
    state = running_state(closures=ended + 2, trainers=1, slots=ended)
    for closure in range(ended):
        apply(state, decide.finish(state, closure=closure, trainer=0, attempt=0))
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    apply(state, decide.reopen(state, reopened(*range(ended)), {}))
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, 1))
    apply(state, assigning.assign(state))
    return state


def test_reported_closures_run_again_despite_errors_of_other_closures() -> None:
    state = state_with_rerun(2, trainers=3)
    assert sorted(state.running) == [0, 1, 2]
    apply(state, decide.reopen(state, reopened(4), {}))
    assert cancelled(apply(state, decide.fail(state, closure=2, trainer=2, attempt=0))) == [3]
    assert started(apply(state, assigning.assign(state))) == [(4, 2, 0)]
    lost = apply(state, decide.lose_trainer(state, 1, attempts_max=ATTEMPTS_MAX))
    assert cancelled(lost) == []
    apply(state, decide.finish(state, closure=0, trainer=0, attempt=0))
    assert started(apply(state, assigning.assign(state))) == [(1, 0, 1)]
    apply(state, decide.finish(state, closure=1, trainer=0, attempt=1))
    apply(state, decide.finish(state, closure=4, trainer=2, attempt=0))
    apply(state, decide.report_errors(state))
    assert state.is_idle
    assert not state.reported
    check_invariants(state)


def test_reported_closures_run_again_despite_unreported_error() -> None:
    """A join waits until all closures have ended before it raises the error."""
    state = running_state(closures=2, trainers=2)
    apply(state, decide.finish(state, closure=0, trainer=0, attempt=0))
    apply(state, decide.fail(state, closure=1, trainer=1, attempt=0))
    apply(state, decide.reopen(state, reopened(0), {}))
    assert started(apply(state, assigning.assign(state))) == [(0, 0, 0)]


def test_closure_with_committed_part_runs_again_despite_errors_of_others() -> None:
    state = running_state(closures=4, trainers=3)
    decided = {0: decide.DecidedClosure(attempt=0, parts=1)}
    apply(state, decide.lose_trainer(state, 0, decided, attempts_max=ATTEMPTS_MAX))
    assert cancelled(apply(state, decide.fail(state, closure=1, trainer=1, attempt=0))) == [3]
    assert started(apply(state, assigning.assign(state))) == [(0, 1, 1)]
    decided = {2: decide.DecidedClosure(attempt=0, parts=0)}
    lost = apply(state, decide.lose_trainer(state, 2, decided, attempts_max=ATTEMPTS_MAX))
    assert cancelled(lost) == []
    assert list(state.waiting) == [2]
    assert cancelled(apply(state, decide.lose_trainer(state, 1, attempts_max=ATTEMPTS_MAX))) == []


def test_closure_with_failed_input_cancels_no_reported_closure() -> None:
    state = state_with_rerun(2, trainers=1)
    immediate_end = ev.ClosureFailed(closure=9, input=8)
    assert cancelled(apply(state, decide.schedule(state, 9, immediate_end=immediate_end))) == [2, 3]
    assert list(state.waiting) == [1]


def test_cancel_all_cancels_reported_closures_too() -> None:
    state = state_with_rerun(2, trainers=1)
    apply(state, decide.cancel_all(state))
    assert state.is_idle
    assert not state.reported


def test_undone_parts_are_forgotten_and_kept_parts_restored_by_reopen() -> None:
    state = running_state(closures=1, trainers=1)
    decided = {0: decide.DecidedClosure(attempt=0, parts=1)}
    apply(state, decide.lose_trainer(state, 0, decided, attempts_max=ATTEMPTS_MAX))
    assert state.parts == {0: 1}
    apply(state, decide.reopen(state, [], {}))
    assert state.parts == {}
    apply(state, decide.reopen(state, reopened(1), {0: 1, 1: 2, 2: 1}))
    assert state.parts == {0: 1, 1: 2}


def test_give_up_cancels_all_closures_until_errors_are_reported() -> None:
    state = running_state(closures=3, trainers=1)
    apply(state, decide.lose_trainer(state, 0, attempts_max=ATTEMPTS_MAX))
    given_up = apply(state, decide.give_up(state))
    assert [e.closure for e in given_up if isinstance(e, ev.ClosureCancelled)] == [0, 1, 2]
    apply(state, decide.join_trainer(0, slots=2))
    assert apply(state, decide.schedule(state, 3))[-1] == ev.ClosureCancelled(closure=3)
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.report_errors(state))
    apply(state, decide.schedule(state, 4))
    assert started(apply(state, assigning.assign(state))) == [(4, 0, 0)]


class Coordinator(RuleBasedStateMachine):
    """A coordinator that meets requests, results, losses and late messages in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = CoordinatorState()
        self.next_closure = 0
        self.ended: dict[int, int] = {}
        self.said: list[tuple[int, int, int]] = []

    def note(self, events: ev.Events) -> None:
        for event in apply(self.state, events):
            if isinstance(event, ev.ClosureFinished | ev.ClosureFailed | ev.ClosureCancelled):
                self.ended[event.closure] = self.ended.get(event.closure, 0) + 1
            if isinstance(event, ev.ClosureStarted):
                self.said.append((event.closure, event.trainer, event.attempt))

    @rule(
        count=st.integers(1, 4),
        trainer=st.none() | st.integers(0, 3),
        priority=st.integers(-1, 2),
        needs=st.sets(st.integers(1, 4), max_size=2),
    )
    def schedule(self, count: int, trainer: int | None, priority: int, needs: set[int]) -> None:
        for _ in range(count):
            latest = {self.next_closure - each for each in needs}
            inputs = tuple(each for each in latest if each in self.state.attempts)
            self.note(
                decide.schedule(self.state, self.next_closure, trainer, inputs, priority=priority)
            )
            self.next_closure += 1
        self.note(assigning.assign(self.state))

    @precondition(lambda self: self.next_closure)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        closure = data.draw(st.integers(0, self.next_closure - 1))
        self.note(decide.cancel(self.state, closure, ev.Reason.ASKED))
        self.note(assigning.assign(self.state))

    @precondition(lambda self: self.said)
    @rule(data=st.data(), is_granted=st.booleans())
    def answer_cancel(self, data: st.DataObject, is_granted: bool) -> None:
        run = data.draw(st.sampled_from(self.said))
        self.note(decide.answer_cancel(self.state, *run, is_granted=is_granted))

    @rule(trainer=st.integers(0, 3))
    def fail_bound_to(self, trainer: int) -> None:
        self.note(decide.fail_bound_to(self.state, trainer))

    @rule(trainer=st.integers(0, 2), slots=st.integers(1, 3))
    def join(self, trainer: int, slots: int) -> None:
        if trainer not in self.state.trainers:
            self.note(decide.join_trainer(trainer, slots))
        self.note(assigning.assign(self.state))

    @rule(trainer=st.integers(0, 2))
    def silence(self, trainer: int) -> None:
        self.note(decide.silence_trainer(self.state, trainer))

    @rule(trainer=st.integers(0, 2), data=st.data())
    def lose(self, trainer: int, data: st.DataObject) -> None:
        running = self.state.trainers[trainer].running if trainer in self.state.trainers else {}
        decided = {
            closure: decide.DecidedClosure(
                self.state.running[closure].attempt, 1, data.draw(st.booleans()), is_error=False
            )
            for closure in running
            if data.draw(st.booleans())
        }
        self.note(decide.lose_trainer(self.state, trainer, decided, attempts_max=ATTEMPTS_MAX))
        self.note(assigning.assign(self.state))

    @precondition(lambda self: self.said)
    @rule(data=st.data(), works=st.booleans())
    def hear(self, data: st.DataObject, works: bool) -> None:
        closure, trainer, attempt = data.draw(st.sampled_from(self.said))
        word = decide.finish if works else decide.fail
        self.note(word(self.state, closure, trainer, attempt))
        self.go_on()

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def meet_end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.said))
        ended = data.draw(st.sampled_from([{"a"}, {"b"}, {"a", "b"}]))
        self.note(decide.meet_end(self.state, *run, frozenset(ended)))
        self.go_on()

    def go_on(self) -> None:
        self.note(exhausted.end_spent(self.state))
        self.note(decide.report_errors(self.state))
        self.note(assigning.assign(self.state))

    @invariant()
    def each_closure_ends_once_or_is_still_known(self) -> None:
        assert all(count == 1 for count in self.ended.values())
        alive = {*self.state.queues, *self.state.running}
        assert alive | set(self.ended) == set(range(self.next_closure))
        assert not alive & set(self.ended)

    def teardown(self) -> None:
        self.note(decide.cancel_all(self.state))
        assert set(self.ended) == set(range(self.next_closure))


TestCoordinator = Coordinator.TestCase
