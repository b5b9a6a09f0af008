"""No closure waits that could start, whatever has just happened, and each starts where it should.

The decisions look at as little of the state as they can, and a closure that is scheduled behind
others has none taken: here each is compared with one that looks at everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pstrain.consistency import ASYNC, Consistency, Ssp, Sync
from pstrain.coordinator import assigning, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RoundPart, RunResult
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.state import CoordinatorState
from tests.scheduler_invariants import check_invariants

TRAINERS = 4
SECONDS = {"short": 0.02, "middling": 0.05, "long": 1.0}


def slots_of(state: CoordinatorState) -> Iterator[tuple[int, int]]:
    """Yields (closures there, trainer) for each free slot of a live trainer."""
    for index, trainer in state.trainers.items():
        if not trainer.is_silenced:
            busy = len(trainer.running) + len(trainer.dropping)
            yield from ((used, index) for used in range(busy, trainer.slots))


def has_data(state: CoordinatorState, trainer: int) -> bool:
    """True unless a trainer is at the end of all that the first closure needs, others are not."""
    if not state.waiting:
        return True
    ended = [
        state.ends._ended_on.get(each, set()) for each in state.ends.needs_of(state.waiting.first)
    ]
    at_end = set.intersection(*ended) if ended else set()
    return trainer not in at_end or at_end == state.trainers.keys()


def loads_of(state: CoordinatorState) -> dict[int, int]:
    """Returns how many closures each trainer has that may get some ahead."""
    return {
        index: len(trainer.running)
        for index, trainer in state.trainers.items()
        if trainer.ended >= trainer.slots
        and not trainer.is_silenced
        and index not in state.queues.bound_waiting
        and has_data(state, index)
    }


def could_start(core: Core) -> bool:
    """True if the first closure that waits for any trainer may start; no round is considered."""
    state = core.state
    free = [(used, index) for used, index in slots_of(state) if has_data(state, index)]
    if state.holds or not state.waiting:
        return False
    if isinstance(state.consistency, Ssp):
        slowest = state.clocks.slowest
        return any(
            state.consistency.may_start(state.clocks[index], used, slowest) for used, index in free
        )
    first = state.waiting.first
    most = 0 if state.attempts[first] else core._ahead(first)
    return bool(free) or min(loads_of(state).values(), default=most) < most


def next_in_round(state: CoordinatorState, rule: Sync) -> list[int]:
    """Returns the trainers of the next closures of a round, as `rounds.next_trainers` does."""
    this, full = state.round, rule.full(state.trainers_expected)
    is_short = state.trainers_expected - len(this.absent) < full
    if this.decided or is_short or (this.old_rounds and this.absent):
        return []
    begun = [*this.prepared, *state.running]
    used = this.trainers.used if begun else {}
    free = sorted({index for _, index in slots_of(state) if has_data(state, index)})
    free.sort(key=lambda index: state.trainers[index].drops)
    chosen = [index for index in free if index not in used]
    chosen = chosen[: max(0, state.trainers_expected - len(begun))]
    missing = max(0, full - len(begun) - len(chosen))
    chosen += [index for index in free if index in used][:missing]
    return chosen[: _room(state, begun, full)]


def _room(state: CoordinatorState, begun: list[int], full: int) -> int:
    this, waiting = state.round, list(state.waiting)
    first = min(begun or waiting[:1], default=0)
    present = this.old_rounds.get(begun[0] if begun else first)
    end = min((end for end in this.ends if end > first), default=None)
    room = 0
    for closure in waiting[: state.trainers_expected]:
        if this.old_rounds.get(closure) != present:
            break
        if present is None and end is not None and closure >= end:
            break
        room += 1
    is_due = present is not None or begun or room >= full or first < this.sealed_below
    return room if is_due else 0


class WatchedCore(Core):
    """Checks where each closure starts, and that those before it in the queue have started."""

    def apply(self, events: ev.Events) -> None:
        rule = self.state.consistency
        is_plain = not self.state.queues.bound_waiting
        for event in events:
            if isinstance(rule, Sync):
                assert rounds.next_trainers(self.state, rule) == next_in_round(self.state, rule)
            if isinstance(event, ev.ClosureStarted) and is_plain:
                self._check(event)
            super().apply((event,))

    def _check(self, event: ev.ClosureStarted) -> None:
        state, rule = self.state, self.state.consistency
        assert event.closure == state.waiting.first
        assert has_data(state, event.trainer)
        load = len(state.trainers[event.trainer].running)
        if isinstance(rule, Ssp):
            assert rule.may_start(state.clocks[event.trainer], load, state.clocks.slowest)
        elif rule is ASYNC and (
            free := [used for used, index in slots_of(state) if has_data(state, index)]
        ):
            assert load == min(free)
        elif rule is ASYNC:
            loads = loads_of(state)
            assert event.trainer in loads
            assert load == min(loads.values()) < self._ahead(event.closure)


class PromptStarts(RuleBasedStateMachine):
    """A scheduler whose trainers and program do all that they may, in any order."""

    consistency: Consistency = ASYNC
    slots_max = 2
    has_bound = False
    """With bound closures, what may go ahead is only sure not to stay behind for long."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WatchedCore(
            attempts_max=1000, consistency=self.consistency, trainer_indices=range(TRAINERS)
        )
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=10_000, trainer_timeout_s=30.0
        )
        self.values: list[Any] = []

    @property
    def state(self) -> CoordinatorState:
        return self.core.state

    @initialize(knows_times=st.booleans(), trainers=st.integers(2, TRAINERS))
    def begin(self, knows_times: bool, trainers: int) -> None:
        for function, seconds in SECONDS.items() if knows_times else ():
            for _ in range(8):
                self.core.run_times.note(function, seconds)
        for trainer in range(trainers):
            self.scheduler.trainers.joined(trainer, self.slots_max, Outbox())
            if knows_times:
                self.state.trainers[trainer].ended = self.slots_max

    def submit(self, function: str, **options: Any) -> None:
        self.values.append(self.scheduler.submit(function, b"", None, **options))

    @rule(function=st.sampled_from(sorted(SECONDS)), count=st.integers(1, 12))
    def schedule(self, function: str, count: int) -> None:
        for _ in range(count):
            self.submit(function)
            self.nothing_waits_that_could_start()

    @rule(function=st.sampled_from(sorted(SECONDS)), data=st.data())
    def schedule_with_inputs(self, function: str, data: st.DataObject) -> None:
        live = [value for value in self.values if not value.has_ended]
        inputs = data.draw(st.lists(st.sampled_from(live), max_size=2)) if live else []
        self.submit(function, inputs=tuple(inputs))

    @rule(trainer=st.integers(0, TRAINERS - 1), data=st.data())
    def join(self, trainer: int, data: st.DataObject) -> None:
        if trainer not in self.state.trainers:
            slots = data.draw(st.integers(1, self.slots_max))
            self.scheduler.trainers.joined(trainer, slots, Outbox())

    @precondition(lambda self: len(self.core.outboxes.trainers) > 1)
    @rule(trainer=st.integers(0, TRAINERS - 1))
    def silence(self, trainer: int) -> None:
        self.scheduler.trainers.silence(trainer)

    @precondition(lambda self: any(each.is_silenced for each in self.state.trainers.values()))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        silenced = [index for index, each in self.state.trainers.items() if each.is_silenced]
        self._lose(data.draw(st.sampled_from(silenced)))

    def _lose(self, trainer: int) -> None:
        self.scheduler.trainers.lost(trainer, Settlement({}, {}, {}))

    def _results(self, data: st.DataObject, **outcome: Any) -> None:
        """Reports that some closures of a trainer have run."""
        live = [
            t for t, each in self.state.trainers.items() if each.running and not each.is_silenced
        ]
        if not live:
            return
        trainer = data.draw(st.sampled_from(live))
        running = list(self.state.trainers[trainer].running)
        ended = data.draw(st.lists(st.sampled_from(running), min_size=1, unique=True))
        self.scheduler.trainers.results(trainer, [self._result(c, **outcome) for c in ended])

    def _result(self, closure: int, **outcome: Any) -> RunResult:
        seconds = SECONDS[self.core.closures[closure].function_id]
        run = self.state.running[closure]
        return RunResult(
            closure, run.attempt, **{"value": 1, "error": None, **outcome}, seconds=seconds
        )

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self._results(data)

    @rule(function=st.sampled_from(sorted(SECONDS)), seconds=st.sampled_from([0.0001, 0.03, 2.0]))
    def change_run_times(self, function: str, seconds: float) -> None:
        """As results of that function do, before the closures of the message have ended."""
        for _ in range(8):
            self.core.run_times.note(function, seconds)
        self.core.make_progress()

    @precondition(lambda self: self.state.attempts)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        closure = data.draw(st.sampled_from(sorted(self.state.attempts)))
        with self.core.changed:
            self.core.cancel(closure, ev.Reason.ASKED)

    @precondition(lambda self: self.state.cancelling)
    @rule(data=st.data(), is_granted=st.booleans())
    def answer_cancel(self, data: st.DataObject, is_granted: bool) -> None:
        closure = data.draw(st.sampled_from(sorted(self.state.cancelling)))
        run = self.state.running.get(closure)
        if run is not None:
            self.scheduler.trainers.cancel_answered(
                run.trainer, closure, run.attempt, is_granted=is_granted
            )

    @rule(
        function=st.sampled_from(sorted(SECONDS)), count=st.integers(0, 20), resumes=st.booleans()
    )
    def schedule_while_held(self, function: str, count: int, resumes: bool) -> None:
        if not self.state.holds:
            self.scheduler.rollback.hold()
        for _ in range(count):
            self.submit(function)
        if resumes:
            self.scheduler.rollback.resume()

    @precondition(lambda self: self.state.holds)
    @rule()
    def resume(self) -> None:
        self.scheduler.rollback.resume()

    @precondition(lambda self: self.state.finished_count > 5)
    @rule()
    def restore(self) -> None:
        """Takes everything back to the start, as a restore does."""
        rollback = self.scheduler.rollback
        rollback.hold()
        for trainer in list(self.state.trainers):
            self.scheduler.trainers.silence(trainer)
            self._lose(trainer)
        rollback.undo_round()
        rollback.requeue({})
        rollback.keep_ended()
        rollback.resume()

    @invariant()
    def nothing_waits_that_could_start(self) -> None:
        check_invariants(self.state)
        assert assigning.assign(self.state) == ()
        if not self.has_bound:
            assert assigning.assign(self.state, self.core._ahead) == ()
            assert self.core.in_rounds or not could_start(self.core)


class PromptStartsOfAnyKind(PromptStarts):
    """With priorities, closures that are bound to a trainer, and trainers without data."""

    has_bound = True

    @rule(
        function=st.sampled_from(sorted(SECONDS)),
        trainer=st.none() | st.integers(0, TRAINERS - 1),
        priority=st.integers(-1, 2),
        iterators=st.sampled_from(["", "a", "b", "ab"]),
    )
    def schedule_specially(
        self, function: str, trainer: int | None, priority: int, iterators: str
    ) -> None:
        self.submit(function, trainer=trainer, priority=priority, iterators=frozenset(iterators))

    @precondition(lambda self: len(self.state.trainers) > 1)
    @rule(data=st.data(), iterators=st.sampled_from(["a", "b", "ab"]))
    def meet_end(self, data: st.DataObject, iterators: str) -> None:
        live = [
            (closure, run.trainer)
            for closure, run in self.state.running.items()
            if closure not in self.state.queues.bound
            and not self.state.trainers[run.trainer].is_silenced
            and not self._would_be_everywhere(run.trainer, {*iterators, f"closure {closure}"})
        ]
        if live:
            closure, trainer = data.draw(st.sampled_from(sorted(live)))
            ended = frozenset(iterators)
            result = self._result(closure, error=IndexError("no data"), ended_iterators=ended)
            self.scheduler.trainers.results(trainer, [result])

    def _would_be_everywhere(self, trainer: int, iterators: set[str]) -> bool:
        """True if one of these would have ended on all trainers: nothing starts any more then."""
        ended = [self.state.ends._ended_on.get(each, set()) | {trainer} for each in iterators]
        return any(each == self.state.trainers.keys() for each in ended)

    @rule()
    def renew_data(self) -> None:
        self.scheduler.add_resource("a", b"")


class PromptSspStarts(PromptStartsOfAnyKind):
    consistency = Ssp(0)


class PromptSyncStarts(PromptStarts):
    """In rounds, with one trainer to spare."""

    consistency = Sync(1)
    slots_max = 1

    def _result(self, closure: int, **outcome: Any) -> RunResult:
        servers = (0,) if self.has_changes else ()
        return super()._result(closure, part=RoundPart("trainer", servers, True), **outcome)

    @rule(data=st.data(), has_changes=st.booleans())
    def end(self, data: st.DataObject, has_changes: bool) -> None:
        self.has_changes = has_changes
        self._results(data)

    @precondition(lambda self: any(each.dropping for each in self.state.trainers.values()))
    @rule(data=st.data())
    def end_drop(self, data: st.DataObject) -> None:
        late = [
            (index, *run)
            for index, each in self.state.trainers.items()
            for run in each.dropping.items()
        ]
        trainer, closure, attempt = data.draw(st.sampled_from(late))
        dropped = RunResult(closure, attempt, None, None, was_dropped=True)
        self.scheduler.trainers.results(trainer, [dropped])

    @precondition(lambda self: self.core.order)
    @rule()
    def apply_round(self) -> None:
        assert self.core.order is not None
        self.scheduler.rounds.applied(self.core.order)

    @rule()
    def wait(self) -> None:
        self.scheduler.is_idle()

    @rule()
    def give_up_absent(self) -> None:
        with self.core.changed:
            self.core.apply(rounds.give_up_absent(self.state))
            self.core.make_progress()


class PromptSyncStartsWithoutSpare(PromptSyncStarts):
    consistency = Sync(0)


def test_closure_starts_once_the_trainer_that_ssp_waited_for_is_taken_for_lost() -> None:
    """What it left behind may take long to settle, as while a parameter server does not answer."""
    core = Core(attempts_max=3, consistency=Ssp(0), trainer_indices=range(2))
    scheduler = Scheduler(core, ids=itertools.count(), capacity=10, trainer_timeout_s=30.0)
    for trainer in range(2):
        scheduler.trainers.joined(trainer, 1, Outbox())
    for _ in range(3):
        scheduler.submit("step", b"", None)
    scheduler.trainers.results(0, [RunResult(0, 0, None, None)])
    assert list(core.state.running) == [1]
    assert scheduler.trainers.silence(1)
    assert core.state.running[2].trainer == 0


def test_interrupted_call_does_not_keep_later_closures_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ctrl-C in a notebook may, between two cells that schedule."""
    core = Core(attempts_max=3)
    scheduler = Scheduler(core, ids=itertools.count(), capacity=10, trainer_timeout_s=30.0)
    scheduler.trainers.joined(0, 2, Outbox())
    with monkeypatch.context() as patch:
        patch.setattr(core, "make_progress", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scheduler.submit("step", b"", None)
    assert not core.state.running
    scheduler.submit("step", b"", None)
    assert list(core.state.running) == [0, 1]


TestPromptStarts = PromptStarts.TestCase
TestPromptStartsOfAnyKind = PromptStartsOfAnyKind.TestCase
TestPromptSspStarts = PromptSspStarts.TestCase
TestPromptSyncStarts = PromptSyncStarts.TestCase
TestPromptSyncStartsWithoutSpare = PromptSyncStartsWithoutSpare.TestCase
for case in (
    TestPromptStarts,
    TestPromptStartsOfAnyKind,
    TestPromptSspStarts,
    TestPromptSyncStarts,
    TestPromptSyncStartsWithoutSpare,
):
    case.settings = settings(max_examples=30, stateful_step_count=30)
del case  # or pytest runs the last one under this name too
