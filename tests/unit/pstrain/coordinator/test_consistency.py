"""No trainer gets further ahead than allowed, and rounds end despite lost or late trainers."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pstrain import consistency
from pstrain.consistency import ASYNC, Consistency, Ssp, Sync, consistency_of
from pstrain.coordinator import assigning, decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import InvalidArgumentError
from tests.scheduler_invariants import check_invariants
from tests.unit.pstrain.coordinator.scheduling_cases import apply


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("async", ASYNC),
        ("sync", Sync(0)),
        (consistency.sync(backup_workers=2), Sync(2)),
        (consistency.ssp(staleness=4), Ssp(4)),
    ],
)
def test_consistency_of_resolves_names_and_rules(value: Any, rule: Consistency) -> None:
    assert consistency_of(value, trainers=3) == rule
    assert rule.to_json()["name"] == rule.name


def test_replicas_in_sync_follow_from_rule_and_trainer_count() -> None:
    rules = (ASYNC, Ssp(1), Sync(0), Sync(1), Sync(3))
    assert [rule.replicas_in_sync(4) for rule in rules] == [1, 1, 4, 3, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((value, "consistency is .*, got") for value in ("ssp", "lazy", None, 3)),
        (consistency.sync(backup_workers=3), "backup_workers=3 leaves no trainer .* at most 2"),
    ],
)
def test_impossible_consistency_rules_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        consistency_of(value, trainers=3)


def test_rules_with_integers_of_numpy_have_json_form() -> None:
    for made in (consistency.ssp(np.int64(2)), consistency.sync(np.int64(2))):  # type: ignore[arg-type]
        assert 2 in json.loads(json.dumps(made.to_json())).values()


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_staleness_and_backup_workers_that_are_not_whole_numbers_are_refused(count: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="staleness"):
        consistency.ssp(count)
    with pytest.raises(InvalidArgumentError, match="backup_workers"):
        consistency.sync(count)


class Scheduling(RuleBasedStateMachine):
    """Trainers that join, leave and answer in any order; each decision is taken at once."""

    rule_of_trainers: Consistency = ASYNC
    trainers = 3
    slots = 2

    def __init__(self) -> None:
        super().__init__()
        self.state = CoordinatorState(self.rule_of_trainers, range(self.trainers))
        self.scheduled = 0
        self.ended: dict[int, str] = {}
        self.to_drop: list[tuple[int, int, int]] = []
        self.dropped: list[tuple[int, int]] = []

    def note(self, events: ev.Events) -> None:
        for event in events:
            self.before(event)
            self.state.apply(event)
            if isinstance(event, ev.ClosureFinished | ev.ClosureFailed | ev.ClosureCancelled):
                assert event.closure not in self.ended
                self.ended[event.closure] = type(event).__name__
            if isinstance(event, ev.ClosureDropped):
                self.to_drop.append((event.closure, event.trainer, event.attempt))
                self.dropped.append((event.closure, event.attempt))
        check_invariants(self.state)

    def before(self, event: ev.Event) -> None:
        """Looks at an event before it is applied."""

    def go_on(self) -> None:
        self.note(rounds.decide_round(self.state))
        self.note(assigning.assign(self.state))

    @rule(count=st.integers(1, 5))
    def schedule(self, count: int) -> None:
        for _ in range(count):
            self.note(decide.schedule(self.state, self.scheduled))
            self.scheduled += 1
            self.go_on()

    @rule(trainer=st.integers(0, 2))
    def join(self, trainer: int) -> None:
        if trainer not in self.state.trainers:
            self.note(decide.join_trainer(trainer, self.slots))
            self.go_on()

    @rule(trainer=st.integers(0, 2))
    def silence(self, trainer: int) -> None:
        self.note(decide.silence_trainer(self.state, trainer))
        self.go_on()

    @precondition(lambda self: any(t.is_silenced for t in self.state.trainers.values()))
    @rule(data=st.data())
    def settle_loss(self, data: st.DataObject) -> None:
        silenced = [i for i, t in self.state.trainers.items() if t.is_silenced]
        self.lose(data.draw(st.sampled_from(silenced)))

    def lose(self, trainer: int) -> None:
        self.to_drop = [d for d in self.to_drop if d[1] != trainer]
        self.note(decide.lose_trainer(self.state, trainer, attempts_max=1_000))
        self.go_on()

    @precondition(lambda self: self.state.running)
    @rule(data=st.data(), changes=st.booleans())
    def answer(self, data: st.DataObject, changes: bool) -> None:
        self.hear(data.draw(st.sampled_from(sorted(self.state.running))), changes)

    @precondition(lambda self: self.state.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        closure = data.draw(st.sampled_from(sorted(self.state.running)))
        run = self.state.running[closure]
        self.note(decide.fail(self.state, closure, run.trainer, run.attempt))
        self.go_on()
        self.note(decide.report_errors(self.state))

    def hear(self, closure: int, changes: bool = True) -> None:
        run = self.state.running[closure]
        said = (self.state, closure, run.trainer, run.attempt)
        if isinstance(self.rule_of_trainers, Sync):
            self.note(decide.prepare(*said, has_changes=changes))
        else:
            self.note(decide.finish(*said))
        self.go_on()

    @precondition(lambda self: self.state.round.decided)
    @rule()
    def apply_round(self) -> None:
        self.note(rounds.end_round(self.state))
        self.go_on()

    @precondition(lambda self: self.to_drop)
    @rule(data=st.data())
    def end_drop(self, data: st.DataObject) -> None:
        late = data.draw(st.sampled_from(self.to_drop))
        self.to_drop.remove(late)
        self.note(rounds.end_drop(self.state, *late))
        assert rounds.end_drop(self.state, *late) == ()
        self.go_on()

    @rule()
    def wait(self) -> None:
        self.note(rounds.seal(self.state, self.scheduled))
        self.go_on()

    @invariant()
    def closures_end_once_and_runs_are_dropped_once(self) -> None:
        assert len(set(self.dropped)) == len(self.dropped)
        alive = {*self.state.waiting, *self.state.running}
        alive |= {*self.state.round.prepared, *self.state.round.decided}
        assert alive | set(self.ended) == set(range(self.scheduled))

    def teardown(self) -> None:
        """Checks that all closures end once one trainer works and the program waits."""
        self.note(rounds.give_up_absent(self.state))
        for trainer in [i for i, t in self.state.trainers.items() if t.is_silenced]:
            self.lose(trainer)
        if not self.state.trainers:
            self.join(0)
        self.wait()
        for _ in range(10 * self.scheduled + 10):
            self.note(decide.report_errors(self.state))
            self.go_on()
            if self.state.round.decided:
                self.apply_round()
            elif self.to_drop:
                late = self.to_drop.pop(0)
                self.note(rounds.end_drop(self.state, *late))
                self.go_on()
            elif self.state.running:
                self.hear(min(self.state.running))
        assert self.state.is_idle, self.state
        assert set(self.ended) == set(range(self.scheduled))


class SspScheduling(Scheduling):
    rule_of_trainers = Ssp(2)

    def before(self, event: ev.Event) -> None:
        if isinstance(event, ev.ClosureStarted):
            running, clocks = self.state.trainers[event.trainer].running, self.state.clocks
            assert clocks[event.trainer] + len(running) - clocks.slowest <= 2


class SspWithoutStalenessScheduling(SspScheduling):
    """Staleness 0: a trainer runs one closure, and only while it is level with the slowest."""

    rule_of_trainers = Ssp(0)

    def before(self, event: ev.Event) -> None:
        if isinstance(event, ev.ClosureStarted):
            assert not self.state.trainers[event.trainer].running
            assert self.state.clocks[event.trainer] == self.state.clocks.slowest


class SyncScheduling(Scheduling):
    rule_of_trainers = Sync(0)
    slots = 1

    def before(self, event: ev.Event) -> None:
        this = self.state.round
        if isinstance(event, ev.ClosureStarted):
            assert not this.decided
        if isinstance(event, ev.RoundDecided):
            assert len(event.closures) <= self.trainers
        if isinstance(event, ev.ClosureDropped) and not self.rule_of_trainers.backup_workers:  # type: ignore[union-attr]
            raise AssertionError("nothing is late where all are waited for")


class SyncWithBackupScheduling(SyncScheduling):
    rule_of_trainers = Sync(1)


TestSspScheduling = SspScheduling.TestCase
TestSspWithoutStalenessScheduling = SspWithoutStalenessScheduling.TestCase
TestSyncScheduling = SyncScheduling.TestCase
TestSyncWithBackupScheduling = SyncWithBackupScheduling.TestCase
for case in (
    TestSspScheduling,
    TestSspWithoutStalenessScheduling,
    TestSyncScheduling,
    TestSyncWithBackupScheduling,
):
    case.settings = settings(max_examples=40, stateful_step_count=30)
del case  # or pytest runs the last one under this name too


def reopen(state: CoordinatorState, ended: dict[int, int]) -> ev.Events:
    """Queues closures again that ended, given their rounds."""
    again = [ev.ClosureReopened(closure=c, round=number) for c, number in ended.items()]
    return decide.reopen(state, again, {})


def started(state: CoordinatorState) -> list[tuple[int, int]]:
    events = apply(state, assigning.assign(state))
    return [(e.closure, e.trainer) for e in events if isinstance(e, ev.ClosureStarted)]


def sync_state(rule: Sync, trainers: int, closures: int) -> CoordinatorState:
    state = CoordinatorState(rule, range(trainers))
    for closure in range(closures):
        apply(state, decide.schedule(state, closure))
    for trainer in reversed(range(trainers)):
        assert rule.backup_workers or not started(state)
        apply(state, decide.join_trainer(trainer, 1))
    return state


def prepare(state: CoordinatorState, closure: int) -> ev.Events:
    run = state.running[closure]
    apply(state, decide.prepare(state, closure, run.trainer, run.attempt))
    return apply(state, rounds.decide_round(state))


def test_round_assigns_closures_by_trainer_number_not_by_join_order() -> None:
    state = sync_state(Sync(), trainers=3, closures=5)
    assert started(state) == [(0, 0), (1, 1), (2, 2)]
    for closure in (2, 0):
        assert prepare(state, closure) == ()
        assert started(state) == []
    assert prepare(state, 1) == (ev.RoundDecided(closures=(2, 0, 1)),)
    assert started(state) == []
    ended = apply(state, rounds.end_round(state))
    assert ended[:3] == tuple(ev.ClosureFinished(closure=c) for c in range(3))
    assert started(state) == []
    apply(state, decide.schedule(state, 5))
    assert started(state) == [(3, 0), (4, 1), (5, 2)]


def test_rounds_wait_for_exactly_the_trainers_of_job_with_gaps_in_its_numbers() -> None:
    state = CoordinatorState(Sync(), (1, 5))
    for closure in range(2):
        apply(state, decide.schedule(state, closure))
    apply(state, decide.join_trainer(1, 1))
    assert started(state) == []
    apply(state, decide.join_trainer(5, 1))
    assert started(state) == [(0, 1), (1, 5)]


def test_incomplete_round_starts_when_program_waits_for_it() -> None:
    state = sync_state(Sync(), trainers=2, closures=3)
    started(state)
    prepare(state, 0)
    prepare(state, 1)
    apply(state, rounds.end_round(state))
    assert apply(state, rounds.seal(state, 2)) == (ev.RoundsSealed(below=2),)
    assert started(state) == []
    assert apply(state, rounds.seal(state, 3)) == (ev.RoundsSealed(below=3, end=3),)
    apply(state, decide.schedule(state, 3))
    assert started(state) == [(2, 0)]
    assert prepare(state, 2) == (ev.RoundDecided(closures=(2,)),)
    assert apply(state, rounds.seal(state, 3)) == ()


def test_begun_round_ends_while_scheduling_is_held() -> None:
    """With backup workers, a round waits for another closure in place of one without changes.

    While the program saves, nothing can be scheduled, so the round ends without that closure.
    """
    state = sync_state(Sync(1), trainers=3, closures=2)
    assert started(state) == [(0, 0), (1, 1)]
    run = state.running[1]
    apply(state, decide.prepare(state, 1, run.trainer, run.attempt, has_changes=False))
    assert prepare(state, 0) == ()
    assert not state.is_quiet
    apply(state, decide.hold())
    assert apply(state, rounds.decide_round(state)) == (ev.RoundDecided(closures=(1, 0)),)
    assert not state.is_quiet
    apply(state, rounds.end_round(state))
    assert state.is_quiet


@given(
    trainers=st.integers(1, 3),
    program=st.lists(st.sampled_from(["schedule", "schedule", "schedule", "wait", "hold"])),
    chance=st.randoms(use_true_random=False),
)
def test_rounds_depend_on_program_order_only(
    trainers: int, program: list[str], chance: Random
) -> None:
    """Neither the speed of the trainers nor saves in between change the rounds."""
    state = sync_state(Sync(), trainers, closures=0)
    made: list[list[int]] = []
    expected: list[list[int]] = [[]]
    scheduled = 0
    for action in [*program, "wait"]:
        if action == "schedule":
            apply(state, decide.schedule(state, scheduled))
            expected[-1].append(scheduled)
            scheduled += 1
        elif action == "wait":
            apply(state, rounds.seal(state, scheduled))
        else:
            apply(state, decide.hold())
            _play(state, made, chance, until_quiet=True)
            assert state.is_quiet
            apply(state, decide.resume(state))
        if expected[-1] and (action == "wait" or len(expected[-1]) == trainers):
            expected.append([])
        _play(state, made, chance, until_quiet=False)
    _play(state, made, chance, until_quiet=True)
    assert state.is_idle
    assert made == expected[:-1]


def _play(
    state: CoordinatorState, made: list[list[int]], chance: Random, *, until_quiet: bool
) -> None:
    """Lets trainers work in random order, for a while or until nothing more happens."""
    while until_quiet or chance.random() < 0.6:
        apply(state, rounds.decide_round(state))
        started(state)
        if state.round.decided:
            made.append(sorted(state.round.decided))
            apply(state, rounds.end_round(state))
        elif state.running:
            closure = chance.choice(sorted(state.running))
            run = state.running[closure]
            apply(state, decide.prepare(state, closure, run.trainer, run.attempt))
        elif not state.round.prepared:
            return


def test_other_trainer_runs_closure_of_lost_trainer_and_round_ends() -> None:
    state = sync_state(Sync(), trainers=2, closures=2)
    started(state)
    prepare(state, 1)
    apply(state, decide.silence_trainer(state, 1))
    assert prepare(state, 0) == ()
    apply(state, decide.lose_trainer(state, 1, attempts_max=3))
    assert started(state) == [(1, 0)]
    assert prepare(state, 1) == (ev.RoundDecided(closures=(0, 1)),)


def test_begun_round_goes_on_while_scheduling_is_held_and_no_other_begins() -> None:
    state = sync_state(Sync(), trainers=2, closures=4)
    started(state)
    prepare(state, 0)
    apply(state, decide.hold())
    apply(state, decide.lose_trainer(state, 1, attempts_max=3))
    apply(state, decide.join_trainer(1, 1))
    assert started(state) == [(1, 0)]
    prepare(state, 1)
    apply(state, rounds.end_round(state))
    assert started(state) == []
    apply(state, decide.resume(state))
    assert started(state) == [(2, 0), (3, 1)]


def test_replayed_rounds_have_their_original_closures_and_trainers() -> None:
    """Meanwhile closures of no earlier round wait, and one round is undone while it is applied."""
    state = sync_state(Sync(), trainers=2, closures=3)
    ended: dict[int, int] = {}
    for closures in ([0, 1], [2]):
        started(state)
        apply(state, rounds.seal(state, 3))
        for closure in closures:
            prepare(state, closure)
        ended |= dict.fromkeys(state.round.decided, state.round.number)
        apply(state, rounds.end_round(state))
    for closure in (3, 4, 5):
        apply(state, decide.schedule(state, closure))
    started(state)
    prepare(state, 4)
    prepare(state, 3)
    apply(state, decide.hold())
    apply(state, decide.await_trainers(state))
    for trainer in (0, 1):
        apply(state, decide.lose_trainer(state, trainer, attempts_max=3))
    apply(state, reopen(state, ended))
    apply(state, decide.resume(state))
    assert list(state.waiting) == [0, 1, 2, 3, 4, 5]
    apply(state, decide.join_trainer(1, 1))
    assert started(state) == []
    apply(state, decide.join_trainer(0, 1))
    for expected in ([(0, 0), (1, 1)], [(2, 0)], [(3, 0), (4, 1)], [(5, 0)]):
        assert started(state) == expected
        assert started(state) == []
        for closure, _ in reversed(expected[1:]):
            assert prepare(state, closure) == ()
        apply(state, rounds.seal(state, 6))
        prepare(state, expected[0][0])
        assert sorted(state.round.decided) == [closure for closure, _ in expected]
        apply(state, rounds.end_round(state))
    assert not state.round.old_rounds


def test_round_made_again_takes_no_closure_that_was_not_in_it() -> None:
    state = sync_state(Sync(), trainers=2, closures=1)
    apply(state, rounds.seal(state, 1))
    assert started(state) == [(0, 0)]
    prepare(state, 0)
    apply(state, rounds.end_round(state))
    for closure in (1, 2):
        apply(state, decide.schedule(state, closure))
    apply(state, reopen(state, {0: 0}))
    assert started(state) == [(0, 0)]


def test_round_made_again_gets_all_its_closures_although_a_trainer_is_lost() -> None:
    """One of them changes nothing, so they are more than make a round full."""
    state = sync_state(Sync(1), trainers=3, closures=0)
    apply(state, reopen(state, dict.fromkeys(range(3), 0)))
    assert started(state) == [(0, 0), (1, 1), (2, 2)]
    apply(state, decide.prepare(state, 0, 0, 0, has_changes=False))
    assert prepare(state, 1) == ()
    apply(state, decide.lose_trainer(state, 0, attempts_max=3))
    assert started(state) == [(0, 1)]
    assert prepare(state, 2) == ()
    apply(state, decide.prepare(state, 0, 1, 1, has_changes=False))
    assert rounds.decide_round(state) == (ev.RoundDecided(closures=(1, 2, 0)),)


def test_round_made_again_with_more_closures_than_trainers_becomes_two() -> None:
    """One of them had ended before the round, when no data were left for it after a restore."""
    state = sync_state(Sync(), trainers=2, closures=0)
    apply(state, reopen(state, dict.fromkeys(range(3), 0)))
    assert started(state) == [(0, 0), (1, 1)]
    assert prepare(state, 0) == ()
    assert prepare(state, 1) == (ev.RoundDecided(closures=(0, 1)),)
    apply(state, rounds.end_round(state))
    assert started(state) == [(2, 0)]
    assert prepare(state, 2) == (ev.RoundDecided(closures=(2,)),)


def test_undone_round_shares_its_number_with_no_round_replayed_before_it() -> None:
    """A second server is lost when only the first of two rounds has been made anew."""
    state = sync_state(Sync(), trainers=2, closures=4)
    first = _make_round(state)
    started(state)
    for closure in (2, 3):
        prepare(state, closure)
    assert sorted(state.round.decided) == [2, 3]
    _go_back(state, first)
    first = _make_round(state)
    assert list(first) == [0, 1]
    started(state)
    _go_back(state, first)
    assert [list(_make_round(state)) for _ in range(2)] == [[0, 1], [2, 3]]
    assert state.is_idle
    assert not state.round.old_rounds
    assert state.rounds_count == 4


@given(chance=st.randoms(use_true_random=False), trainers=st.integers(1, 3))
def test_rounds_after_repeated_server_losses_equal_those_without_faults(
    chance: Random, trainers: int
) -> None:
    count = 4 * trainers
    state = sync_state(Sync(), trainers, count)
    kept: dict[int, int] = {}
    for _ in range(6):
        for _ in range(chance.randrange(4)):
            kept |= _make_round(state)
        started(state)
        for closure in sorted(state.running)[: chance.randrange(trainers + 1)]:
            prepare(state, closure)
        _go_back(state, kept)
        kept = {}
    made = []
    while not state.is_idle:
        made.append(list(_make_round(state)))
    assert made == [list(range(c, c + trainers)) for c in range(0, count, trainers)]


def _make_round(state: CoordinatorState) -> dict[int, int]:
    """Runs a round; returns its number by closure, or an empty dict if nothing is scheduled."""
    started(state)
    for closure in sorted(state.running):
        prepare(state, closure)
    made = dict.fromkeys(sorted(state.round.decided), state.round.number)
    assert made or state.is_idle, state
    apply(state, rounds.end_round(state))
    return made


def _go_back(state: CoordinatorState, ended: dict[int, int]) -> None:
    """Loses a server: what ended since the checkpoint is made again, by the same trainers."""
    apply(state, decide.hold())
    apply(state, decide.await_trainers(state))
    trainers = sorted(state.trainers)
    for trainer in trainers:
        apply(state, decide.lose_trainer(state, trainer, attempts_max=1_000))
    apply(state, reopen(state, ended))
    apply(state, decide.resume(state))
    for trainer in trainers:
        apply(state, decide.join_trainer(trainer, 1))


def test_dropped_closure_runs_again_and_late_trainer_works_after_its_drop_has_ended() -> None:
    state = sync_state(Sync(1), trainers=2, closures=3)
    assert started(state) == [(0, 0), (1, 1)]
    late = ev.ClosureDropped(closure=0, trainer=0, attempt=0)
    assert prepare(state, 1) == (late, ev.RoundDecided(closures=(1,)))
    apply(state, rounds.end_round(state))
    assert started(state) == [(0, 1)]
    assert decide.prepare(state, 0, 0, 0) == ()
    apply(state, rounds.end_drop(state, 0, 0, 0))
    assert started(state) == [(2, 0)]
    assert state.dropped_count == 1


def test_closure_without_changes_makes_no_other_closure_late() -> None:
    state = sync_state(Sync(1), trainers=2, closures=4)
    assert started(state) == [(0, 0), (1, 1)]
    apply(state, decide.prepare(state, 1, 1, 0, has_changes=False))
    assert rounds.decide_round(state) == ()
    assert started(state) == []
    assert prepare(state, 0) == (ev.RoundDecided(closures=(1, 0)),)


def test_joining_trainer_starts_at_clock_of_slowest_trainer() -> None:
    state = CoordinatorState(Ssp(1), range(2))
    apply(state, decide.join_trainer(0, 4))
    for closure in range(9):
        apply(state, decide.schedule(state, closure))
    assert started(state) == [(0, 0), (1, 0)]
    for closure in (0, 1):
        apply(state, decide.finish(state, closure, 0, 0))
    apply(state, decide.join_trainer(1, 4))
    assert sorted(started(state)) == [(2, 0), (3, 1), (4, 0), (5, 1)]
    for closure in (2, 4):
        apply(state, decide.finish(state, closure, 0, 0))
    assert started(state) == []
    apply(state, decide.silence_trainer(state, 1))
    assert [trainer for _, trainer in started(state)] == [0, 0]


def test_clock_of_joining_trainer_is_least_of_live_trainers() -> None:
    state = CoordinatorState(Ssp(9), range(4))
    for trainer in range(3):
        apply(state, decide.join_trainer(trainer, 2))
    for closure in range(6):
        apply(state, decide.schedule(state, closure))
    assert started(state) == [(closure, closure % 3) for closure in range(6)]
    for closure in (0, 3, 1):
        apply(state, decide.finish(state, closure, closure % 3, 0))
    apply(state, decide.silence_trainer(state, 2))
    apply(state, decide.join_trainer(3, 1))
    assert [state.clocks[trainer] for trainer in (0, 1, 3)] == [2, 1, 1]
    assert 2 not in state.clocks


def test_reopened_closures_wait_in_order_of_the_rounds_they_were_in() -> None:
    state = CoordinatorState(consistency=Sync(1), trainer_indices=range(3))
    apply(state, reopen(state, {20: 11, 21: 10, 22: 10, 23: 11}))
    assert list(state.waiting) == [21, 22, 20, 23]
