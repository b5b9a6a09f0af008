"""Closures start when their inputs have values, and fail when an input can never have one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pstrain.consistency import Sync
from pstrain.coordinator import assigning, decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.dependencies import Dependencies
from pstrain.coordinator.remote_value import InputValues
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import CancelledError, ClosureInputError, InvalidArgumentError
from tests.scheduler_invariants import check_dependencies
from tests.unit.pstrain.coordinator.scheduling_cases import Cluster, apply, running_state, started


def test_closure_is_released_by_last_of_its_inputs() -> None:
    inputs = Dependencies()
    inputs.add(3, (0, 1))
    inputs.add(4, (0,))
    inputs.add(5, (4, 3))
    check_dependencies(inputs)
    assert (inputs.of(3), inputs.of(0), len(inputs), 4 in inputs) == ((0, 1), (), 3, True)
    assert inputs.finished(0) == [4]
    assert inputs.finished(1) == [3]
    assert inputs.finished(3) == []
    assert inputs.finished(4) == [5]
    assert not inputs


def test_transitive_dependants_of_ended_closures_are_found() -> None:
    inputs = Dependencies()
    for closure, needed in ((2, (0,)), (3, (2, 1)), (4, (3, 0)), (5, (1,))):
        inputs.add(closure, needed)
    assert dict(inputs.dependants_of([0])) == {2: 0, 4: 0, 3: 2}
    assert dict(inputs.dependants_of([2, 3])) == {4: 3}
    for closure in (4, 3, 2, 5):
        inputs.drop(closure)
        check_dependencies(inputs)
    assert not inputs.dependants


# Decisions


def state_with_inputs(inputs: dict[int, tuple[int, ...]], trainers: int = 2) -> CoordinatorState:
    state = running_state(closures=0, trainers=trainers)
    for closure, needed in inputs.items():
        apply(state, decide.schedule(state, closure, None, needed))
    return state


def test_closure_released_by_input_queues_behind_closures_already_ready() -> None:
    state = state_with_inputs({0: (), 1: (0,), 2: (), 3: ()}, trainers=1)
    apply(state, assigning.assign(state))
    assert (list(state.waiting), len(state.queues), state.is_idle) == ([2, 3], 3, False)
    apply(state, decide.finish(state, 0, 0, 0))
    assert list(state.waiting) == [2, 3, 1]


def test_bound_closure_waits_for_its_inputs_and_then_for_its_trainer() -> None:
    state = state_with_inputs({0: ()})
    apply(state, decide.schedule(state, 1, 7, (0,)))
    assert (state.queues.count_bound(7), state.queues.bound_waiting) == (1, {})
    apply(state, assigning.assign(state))
    apply(state, decide.finish(state, 0, 0, 0))
    assert (state.queues.count_bound(7), list(state.queues.bound_waiting[7])) == (1, [1])


def test_failed_closure_fails_its_dependants_and_cancels_other_waiting_closures() -> None:
    state = state_with_inputs({0: (), 1: (), 2: (0,), 3: (2, 1), 4: (1,), 5: ()})
    apply(state, assigning.assign(state))
    events = apply(state, decide.fail(state, 0, 0, 0))
    assert events == (
        ev.ClosureFailed(closure=0),
        ev.ClosureFailed(closure=2, input=0),
        ev.ClosureFailed(closure=3, input=2),
        ev.ClosureCancelled(closure=5),
        ev.ClosureCancelled(closure=4),
    )
    assert set(state.running) == {1}


def test_cancelled_closure_cancels_its_dependants_only() -> None:
    state = state_with_inputs({0: (), 1: (), 2: (), 3: (2,), 4: ()})
    apply(state, assigning.assign(state))
    events = apply(state, decide.cancel(state, 2, ev.Reason.ASKED))
    assert events[1:] == (ev.ClosureCancelled(closure=3, reason=ev.Reason.INPUT, input=2),)
    assert (list(state.waiting), state.failed) == ([4], [])


@pytest.mark.parametrize("fails", [False, True])
def test_dependants_of_closures_of_lost_trainer_end_once(fails: bool) -> None:
    state = state_with_inputs({0: (), 1: (), 2: (0, 1), 3: (2,)}, trainers=0)
    apply(state, decide.join_trainer(0, 2))
    apply(state, assigning.assign(state))
    apply(state, decide.cancel(state, 0, ev.Reason.ASKED))
    decided = {1: decide.DecidedClosure(0, 0, has_ended=True, is_error=fails)}
    events = apply(state, decide.lose_trainer(state, 0, decided, attempts_max=3))
    assert state.is_idle
    assert (ev.ClosureFailed(closure=2, input=1) in events) == fails
    assert bool(state.failed) == fails


def test_closure_whose_input_has_failed_ends_when_it_is_scheduled() -> None:
    state = state_with_inputs({0: ()})
    lost = ev.ClosureFailed(closure=1, input=0)
    events = apply(state, decide.schedule(state, 1, None, (), lost))
    assert events == (
        ev.ClosureQueued(closure=1),
        lost,
        ev.ClosureCancelled(closure=0),
    )


def test_closures_of_random_dependency_graphs_all_end_once() -> None:
    for seed in range(50):
        dice = Random(seed)
        state = running_state(closures=0, trainers=3, slots=2)
        ended: list[int] = []
        for closure in range(60):
            alive = [each for each in state.attempts if dice.random() < 0.3]
            apply(state, decide.schedule(state, closure, None, tuple(alive)))
            apply(state, assigning.assign(state))
            for running, run in list(state.running.items()):
                if dice.random() < 0.4:
                    apply(state, decide.finish(state, running, run.trainer, run.attempt))
                    ended.append(running)
        while apply(state, assigning.assign(state)) or state.running:
            running, run = next(iter(state.running.items()))
            apply(state, decide.finish(state, running, run.trainer, run.attempt))
            ended.append(running)
        assert sorted(ended) == list(range(60))


def test_released_closure_keeps_its_scheduling_order_under_sync_rounds() -> None:
    state = CoordinatorState(Sync(0), range(2))
    for trainer in range(2):
        apply(state, decide.join_trainer(trainer, 1))
    apply(state, decide.schedule(state, 0))
    apply(state, rounds.seal(state, 1))
    apply(state, decide.schedule(state, 1, None, (0,)))
    for closure in (2, 3):
        apply(state, decide.schedule(state, closure))
    assert started(apply(state, assigning.assign(state))) == [(0, 0, 0)]
    apply(state, decide.prepare(state, 0, 0, 0))
    apply(state, rounds.decide_round(state))
    apply(state, rounds.end_round(state))
    assert list(state.waiting) == [1, 2, 3]
    assert started(apply(state, assigning.assign(state))) == [(1, 0, 0), (2, 1, 0)]


# The scheduler


@pytest.fixture
def cluster() -> Any:
    made = Cluster()
    yield made
    made.scheduler.stop()


def test_chain_of_closures_is_scheduled_without_waiting_and_runs_in_order(cluster: Cluster) -> None:
    first = cluster.submit()
    second = cluster.submit(first)
    third = cluster.submit(second, first)
    with pytest.raises(TimeoutError, match=r"waits for the value of .*, step \(closure 1\)"):
        third.fetch(0)
    assert [cluster.run() for _ in range(3)] == [0, 1, 2]
    assert third.fetch(0) == 2
    cluster.submit(third)
    assert cluster.run() == 3


def test_closure_input_error_has_error_of_input_as_cause(cluster: Cluster) -> None:
    values = [cluster.submit()]
    for _ in range(3):
        values.append(cluster.submit(values[-1]))
    cluster.run(KeyError("mine"))
    with pytest.raises(
        ClosureInputError, match=r"step \(closure 1\) needs .* closure 0, .*mine"
    ) as caught:
        values[1].fetch(0)
    assert caught.value.__cause__ is values[0].error
    with pytest.raises(ClosureInputError):
        values[3].fetch(0)
    with pytest.raises(KeyError, match="mine"):
        cluster.scheduler.wait_idle(0)
    again = cluster.submit()
    cluster.run()
    assert again.fetch(0) == 4
    cluster.scheduler.wait_idle(0)


def test_submit_with_failed_input_raises_but_with_cancelled_input_fails_the_value(
    cluster: Cluster,
) -> None:
    failed = cluster.submit()
    cluster.run(KeyError("mine"))
    with pytest.raises(KeyError):
        cluster.scheduler.wait_idle(0)
    with pytest.raises(ClosureInputError, match="mine"):
        cluster.submit(failed)
    busy, waiting = cluster.submit(), cluster.submit()
    assert waiting.cancel()
    needing = cluster.submit(waiting)
    with pytest.raises(ClosureInputError) as caught:
        needing.fetch(0)
    assert isinstance(caught.value.__cause__, CancelledError)
    needing_that = cluster.submit(needing)
    with pytest.raises(ClosureInputError):
        needing_that.fetch(0)
    cluster.run()
    cluster.scheduler.wait_idle(0)
    assert busy.has_value


@pytest.mark.parametrize("rule", [None, Sync(0)])
def test_full_queue_of_dependent_closures_makes_progress(rule: Any) -> None:
    cluster = Cluster(capacity=3, rule=rule)
    value = cluster.submit()
    for _ in range(2):
        value = cluster.submit(value)
    assert not cluster.scheduler._has_room(None)
    if rule is None:
        assert [cluster.run() for _ in range(3)] == [0, 1, 2]
        assert value.fetch(0) == 2
    else:
        run = cluster.outbox.get_nowait()
        assert run.closure.id == 0, "the round of the first waits for no other"
    cluster.scheduler.stop()


def test_input_values_are_referenced_by_index_and_must_belong_to_same_coordinator(
    cluster: Cluster,
) -> None:
    mine, other = cluster.submit(), Cluster()
    theirs = other.submit()
    found = InputValues(cluster.scheduler, lambda value: ("other",) if value == 5 else None)
    assert [found.reference(value) for value in (mine, 5, 6, mine)] == [
        ("input", 0),
        ("other",),
        None,
        ("input", 0),
    ]
    with pytest.raises(InvalidArgumentError, match="another coordinator"):
        found.reference(theirs)
    other.run()
    assert found.reference(theirs) == ("input", 1)
    assert found.values == (mine, theirs)
    other.scheduler.stop()
