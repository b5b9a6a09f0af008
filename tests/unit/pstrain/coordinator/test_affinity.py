"""Closures bound to a trainer: where they run, and which closures wait for which."""

from __future__ import annotations

import pytest

from pstrain.consistency import ASYNC, Consistency, Ssp
from pstrain.coordinator import assigning, decide, waits
from pstrain.coordinator import events as ev
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RunResult, StartRun
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import CancelledError, UnavailableError
from tests.scheduler_invariants import check_invariants
from tests.unit.pstrain.coordinator.scheduling_cases import apply, join_warm, scheduler, started


def state_of(
    bound: dict[int, int | None],
    *,
    consistency: Consistency = ASYNC,
    trainers: int = 2,
    slots: int = 1,
) -> CoordinatorState:
    """Returns a state with closures, bound or not, and with trainers of ``slots`` each."""
    state = CoordinatorState(consistency)
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, slots))
    for closure, trainer in bound.items():
        apply(state, decide.schedule(state, closure, trainer))
    return state


def test_bound_closure_takes_slot_of_its_trainer() -> None:
    state = state_of({0: 1, 1: 1, 2: None})
    assert sorted(started(apply(state, assigning.assign(state)))) == [(0, 1, 0), (2, 0, 0)]
    apply(state, decide.finish(state, 2, 0, 0))
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.finish(state, 0, 1, 0))
    assert started(apply(state, assigning.assign(state))) == [(1, 1, 0)]


def test_older_of_bound_and_unbound_closure_starts_first_on_shared_slot() -> None:
    state = state_of({0: None, 1: 0, 2: None}, trainers=1)
    order = []
    while not state.is_idle:
        [(closure, trainer, attempt)] = started(apply(state, assigning.assign(state)))
        order.append(closure)
        apply(state, decide.finish(state, closure, trainer, attempt))
    assert order == [0, 1, 2]


def test_unbound_closure_leaves_slot_to_closure_bound_to_that_trainer() -> None:
    state = state_of({0: None, 1: 0})
    assert sorted(started(apply(state, assigning.assign(state)))) == [(0, 1, 0), (1, 0, 0)]


def test_each_closure_starts_once_on_trainer_of_several_slots() -> None:
    state = state_of({0: None, 1: 0, 2: 0, 3: None}, trainers=1, slots=3)
    assert started(apply(state, assigning.assign(state))) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_bound_closures_use_slots_that_staleness_denies_to_others() -> None:
    state = state_of(
        {0: 0, 1: None, 2: None, 3: None, 4: None}, consistency=Ssp(0), trainers=2, slots=3
    )
    begun = sorted(started(apply(state, assigning.assign(state))))
    assert begun == [(0, 0, 0), (1, 1, 0), (2, 0, 0)]


def test_bound_closures_queue_only_at_trainer_that_has_ended_some() -> None:
    state = state_of({0: None, **dict.fromkeys(range(1, 8), 0)}, trainers=1, slots=2)
    assert [c for c, _, _ in started(apply(state, assigning.assign(state, lambda _: 4)))] == [0, 1]
    for closure in (0, 1):
        apply(state, decide.finish(state, closure, 0, 0))
    apply(state, decide.schedule(state, 8))
    begun = [c for c, _, _ in started(apply(state, assigning.assign(state, lambda _: 4)))]
    assert begun == [2, 3, 4, 5]


def test_bound_closures_queue_behind_unbound_one_in_their_order() -> None:
    state = state_of({0: None, 1: 0, 2: 0, 3: 0}, trainers=1, slots=2)
    state.trainers[0].ended = 2
    begun = [c for c, _, _ in started(apply(state, assigning.assign(state, lambda _: 4)))]
    assert begun == [0, 1, 2, 3]


def test_short_bound_closures_queue_at_their_trainer_up_to_older_unbound_closure() -> None:
    state = state_of({**dict.fromkeys(range(8), 1), 8: 0, 9: None, 10: 1, 11: 1})
    state.trainers[1].ended = 1
    first = started(apply(state, assigning.assign(state, lambda closure: 6 if closure != 8 else 0)))
    assert [(closure, trainer) for closure, trainer, _ in first] == [
        (8, 0),
        *((closure, 1) for closure in range(6)),
    ]
    for closure in range(6):
        apply(state, decide.finish(state, closure, 1, 0))
    second = started(apply(state, assigning.assign(state, lambda _: 6)))
    assert [closure for closure, _, _ in second] == [6, 7]
    check_invariants(state)
    apply(state, decide.lose_trainer(state, 1, attempts_max=5))
    join_warm(state, 1, 1)
    again = started(apply(state, assigning.assign(state, lambda _: 6)))
    assert again == [(6, 1, 1)]


def test_closures_bound_to_absent_trainer_do_not_block_others() -> None:
    state = state_of({**dict.fromkeys(range(50), 7), 50: None, 51: None, 52: None})
    assert [c for c, _, _ in started(apply(state, assigning.assign(state)))] == [50, 51]
    assert len(state.queues) == 51
    apply(state, decide.join_trainer(7, 2))
    assert started(apply(state, assigning.assign(state))) == [(0, 7, 0), (1, 7, 0)]


def test_closures_bound_to_lost_trainer_wait_for_its_return_in_original_order() -> None:
    state = state_of({0: 1, 1: 1, 2: None}, trainers=2)
    apply(state, assigning.assign(state))
    apply(state, decide.lose_trainer(state, 1, attempts_max=5))
    apply(state, decide.finish(state, 2, 0, 0))
    assert apply(state, assigning.assign(state)) == ()
    apply(state, decide.join_trainer(1, 2))
    assert started(apply(state, assigning.assign(state))) == [(0, 1, 1), (1, 1, 0)]


def test_short_unbound_closures_do_not_starve_closure_bound_to_trainer() -> None:
    state = CoordinatorState()
    for trainer in range(2):
        apply(state, decide.join_trainer(trainer, 1))
    for closure in range(1000):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state, lambda _: True))
    apply(state, decide.schedule(state, 1000, 1))
    for closure in list(state.trainers[1].running):
        apply(state, decide.finish(state, closure, 1, 0))
        apply(state, assigning.assign(state, lambda _: True))
    for closure in range(1000):
        if closure in state.running:
            run = state.running[closure]
            apply(state, decide.finish(state, closure, run.trainer, run.attempt))
            apply(state, assigning.assign(state, lambda _: True))
    assert state.running[1000].trainer == 1


def test_bound_closures_do_not_advance_ssp_clock_of_trainer() -> None:
    state = state_of(dict.fromkeys(range(20), 1), consistency=Ssp(staleness=1))
    for closure in range(20):
        assert started(apply(state, assigning.assign(state))) == [(closure, 1, 0)]
        apply(state, decide.finish(state, closure, 1, 0))
    assert state.clocks[1] == 0


def test_error_cancels_waiting_bound_closures_too() -> None:
    state = state_of({0: None, 1: 1, 2: 7, 3: None, 4: 1})
    apply(state, assigning.assign(state))
    apply(state, decide.fail(state, 0, 0, 0))
    assert len(state.queues) == 0
    apply(state, decide.cancel_all(state))
    assert state.is_idle
    assert not state.queues.bound


def test_reopened_bound_closure_runs_again_on_its_trainer() -> None:
    state = state_of({0: 1, 1: None})
    apply(state, assigning.assign(state))
    for closure, trainer in ((1, 0), (0, 1)):
        apply(state, decide.finish(state, closure, trainer, 0))
    again = [ev.ClosureReopened(closure=0, trainer=1), ev.ClosureReopened(closure=1)]
    apply(state, decide.reopen(state, again, {}))
    assert sorted(started(apply(state, assigning.assign(state)))) == [(0, 1, 0), (1, 0, 0)]


# The scheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    return now


def test_queue_of_absent_trainer_takes_no_capacity_from_unbound_closures() -> None:
    made, items = scheduler(capacity=3)
    for _ in range(3):
        made.submit("f", b"", None, 1)
    assert not made._has_room(1)
    for _ in range(5):
        value = made.submit("f", b"", None)
        run = items.get_nowait()
        assert isinstance(run, StartRun)
        made.trainers.results(0, [RunResult(run.closure.id, run.attempt, "done", None)])
        assert value.fetch(0) == "done"
    made.stop()


def test_trainer_absent_beyond_timeout_fails_closures_bound_to_it(clock: list[float]) -> None:
    made, _ = scheduler()
    value, other = made.submit("f", b"", None, 1), made.submit("f", b"", None, 1)
    made.waits.check_absent_trainers()
    clock[0] = 29.0
    made.waits.check_absent_trainers()
    assert not value.is_ready()
    clock[0] = 31.0
    made.waits.check_absent_trainers()
    with pytest.raises(UnavailableError, match="trainer 1 could not be reached for 31 s"):
        value.fetch(0)
    with pytest.raises(CancelledError):
        other.fetch(0)
    with pytest.raises(UnavailableError, match="'worker' task 1, or schedule them without"):
        made.wait_idle(0)
    made.submit("f", b"", None)
    made.stop()


def test_trainer_that_connected_in_between_gets_its_full_timeout_again(clock: list[float]) -> None:
    made, _ = scheduler()
    made.submit("f", b"", None, 1)
    made.waits.check_absent_trainers()
    clock[0] = 20.0
    made.trainers.joined(1, 1, Outbox())
    made.waits.check_absent_trainers()
    made.trainers.silence(1)
    made.trainers.lost(1, Settlement({}, {}, {}))
    made.waits.check_absent_trainers()
    clock[0] = 40.0
    made.waits.check_absent_trainers()
    assert made.counts()["waiting"] == 1
    made.stop()


def test_warning_names_absent_trainers_that_closures_wait_for(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = scheduler()
    made.submit("f", b"", None, 1)
    for clock[0] in (0.0, 9.0, 11.0, 12.0, 22.0):
        made.waits.check_absent_trainers()
    made.trainers.joined(1, 1, Outbox())
    for clock[0] in (23.0, 40.0):
        made.waits.check_absent_trainers()
    for trainer in (0, 1):
        made.trainers.silence(trainer)
        made.trainers.lost(trainer, Settlement({}, {}, {}))
    for clock[0] in (41.0, 52.0):
        made.waits.check_absent_trainers()
    bound = "waiting for trainers [1], which closures are bound to, to connect"
    told = [text for text in caplog.messages if "to connect" in text]
    assert told == [bound, bound, "waiting for a trainer to connect"]
    made.stop()
