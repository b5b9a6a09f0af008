"""A cancelled closure is applied nowhere and affects no other; deadlines cancel closures."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pstrain.consistency import Sync
from pstrain.coordinator import assigning, decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.deadlines import DeadlineHeap, Deadlines
from pstrain.coordinator.events import Reason
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import CancelRun, Outbox, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
)
from tests.unit.pstrain.coordinator.scheduling_cases import apply, running_state

DEADLINE_S = 20.0


def cancel(state: CoordinatorState, closure: int) -> ev.Events:
    return apply(state, decide.cancel(state, closure, Reason.ASKED))


def asked(closure: int) -> ev.CancelAsked:
    return ev.CancelAsked(closure=closure, reason=Reason.ASKED)


def cancelled(closure: int, reason: Reason = Reason.ASKED) -> ev.ClosureCancelled:
    return ev.ClosureCancelled(closure=closure, reason=reason)


# Decisions


def test_cancelled_waiting_closure_ends_at_once() -> None:
    state = running_state(closures=4, trainers=1)
    assert cancel(state, 2) == (cancelled(2),)
    assert list(state.waiting) == [1, 3]
    assert cancel(state, 2) == cancel(state, 99) == ()
    assert (state.cancelled_count, state.failed) == (1, [])


def test_cancel_of_running_closure_is_decided_by_its_trainer() -> None:
    state = running_state(closures=2, trainers=2)
    assert cancel(state, 0) == (asked(0),)
    assert cancel(state, 0) == ()
    assert apply(state, decide.finish(state, 0, 0, 0)) == (ev.ClosureFinished(closure=0),)
    cancel(state, 1)
    granted = decide.answer_cancel(state, 1, 1, 0, is_granted=True)
    assert apply(state, granted) == (ev.CancelGranted(closure=1),)
    assert not state.is_idle
    assert apply(state, decide.fail(state, 1, 1, 0)) == (cancelled(1),)
    assert state.is_idle
    assert state.failed == []


def test_error_of_cancelled_closure_cancels_no_other_closure() -> None:
    state = running_state(closures=3, trainers=1)
    cancel(state, 0)
    apply(state, decide.fail(state, 0, 0, 0))
    assert list(state.waiting) == [1, 2]


def test_closure_whose_cancel_is_refused_runs_again_after_trainer_loss() -> None:
    state = running_state(closures=2, trainers=1)
    cancel(state, 0)
    apply(state, decide.answer_cancel(state, 0, 0, 0, is_granted=False))
    assert not state.cancelling
    apply(state, decide.lose_trainer(state, 0, attempts_max=3))
    assert list(state.waiting) == [0, 1]


@pytest.mark.parametrize("trainer_attempt", [(1, 0), (0, 1)])
def test_cancel_answer_of_another_run_is_ignored(trainer_attempt: tuple[int, int]) -> None:
    state = running_state(closures=2, trainers=2)
    cancel(state, 0)
    assert decide.answer_cancel(state, 0, *trainer_attempt, is_granted=True) == ()


def test_closure_lost_during_cancel_does_not_run_again() -> None:
    state = running_state(closures=4, trainers=1, slots=3)
    for closure in range(3):
        cancel(state, closure)
    decided = {0: decide.DecidedClosure(0, 0, has_ended=True), 1: decide.DecidedClosure(0, 0)}
    events = apply(state, decide.lose_trainer(state, 0, decided, attempts_max=1))
    assert ev.ClosureFinished(closure=0) in events
    assert cancelled(2) in events
    assert ev.ClosureFailed(closure=1) in events, "it has lost a trainer once too often"


def test_closure_with_decided_error_during_cancel_cancels_no_other() -> None:
    state = running_state(closures=2, trainers=1)
    cancel(state, 0)
    decided = {0: decide.DecidedClosure(0, 0, has_ended=True, is_error=True)}
    assert cancelled(0) in apply(state, decide.lose_trainer(state, 0, decided, attempts_max=3))
    assert list(state.waiting) == [1]


def test_closure_with_committed_part_is_not_cancelled() -> None:
    state = running_state(closures=1, trainers=1)
    cancel(state, 0)
    decided = {0: decide.DecidedClosure(attempt=0, parts=0)}
    apply(state, decide.lose_trainer(state, 0, decided, attempts_max=3))
    assert state.parts == {0: 0}
    assert cancel(state, 0) == ()
    assert list(state.waiting) == [0]


def test_cancelled_closure_dropped_from_round_does_not_run_again() -> None:
    state = running_state(closures=2, trainers=2, rule=Sync(1))
    cancel(state, 1)
    apply(state, decide.prepare(state, 0, 0, 0))
    assert cancel(state, 0) == (), "its round may be decided"
    events = apply(state, rounds.decide_round(state))
    assert cancelled(1) in events
    assert not state.waiting
    assert state.trainers[1].dropping == {1: 0}
    assert cancel(state, 0) == (), "its round is being applied"


def test_cancel_may_be_refused_once_closure_is_prepared() -> None:
    state = running_state(closures=2, trainers=2, rule=Sync())
    cancel(state, 0)
    apply(state, decide.prepare(state, 0, 0, 0))
    apply(state, decide.answer_cancel(state, 0, 0, 0, is_granted=False))
    assert not state.cancelling


def test_round_continues_without_cancelled_closure() -> None:
    state = running_state(closures=3, trainers=2, rule=Sync(0))
    cancel(state, 0)
    apply(state, decide.fail(state, 0, 0, 0))
    apply(state, assigning.assign(state))
    for closure, trainer in ((1, 1), (2, 0)):
        apply(state, decide.prepare(state, closure, trainer, 0))
    events = apply(state, rounds.decide_round(state))
    assert ev.RoundDecided(closures=(1, 2)) in events


# Deadlines


def test_deadlines_fall_due_in_order_and_once() -> None:
    heap = DeadlineHeap()
    for closure, at_s in ((0, 5.0), (1, 3.0), (2, 4.0), (3, 9.0)):
        heap.add(closure, at_s)
    heap.drop(2)
    assert heap.due(2.0) == []
    assert heap.due(5.0) == [1, 0]
    assert heap.due(5.0) == []
    assert (heap.next_s, len(heap)) == (9.0, 1)


def test_deadline_heap_shrinks_when_closures_end() -> None:
    heap = DeadlineHeap()
    for closure in range(10_000):
        heap.add(closure, 1e9)
        heap.drop(closure)
    assert len(heap._heap) < 200


def test_deadline_thread_reports_due_closures_until_closed() -> None:
    told: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    deadlines = Deadlines(told.put)
    deadlines.add(7, 1e9)
    deadlines.add(8, 0.0)
    assert told.get(timeout=DEADLINE_S) == [8]
    thread = deadlines._thread
    assert thread is not None
    deadlines.close(DEADLINE_S)
    assert not thread.is_alive()
    deadlines.add(9, 0.0)
    assert told.empty()


# The scheduler


class Cluster:
    """A scheduler with one trainer of two slots, and the orders sent to that trainer."""

    def __init__(self) -> None:
        self.core = Core(attempts_max=3)
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=100, trainer_timeout_s=30.0
        )
        self._items = Outbox()
        self.scheduler.trainers.joined(0, 2, self._items)

    def orders(self) -> list[Any]:
        items = []
        while not self._items.empty():
            items.append(self._items.get_nowait())
        return items

    def ends(self, closure: int, error: Exception | None = None) -> None:
        self.scheduler.trainers.results(0, [RunResult(closure, 0, f"value {closure}", error)])

    def cancels(self, value: Any) -> tuple[threading.Thread, list[bool]]:
        """Cancels ``value`` in a thread; returns once the trainer has been asked to cancel it."""
        said: list[bool] = []
        thread = threading.Thread(target=lambda: said.append(value.cancel(DEADLINE_S)))
        thread.start()
        assert isinstance(self._items.get(timeout=DEADLINE_S), CancelRun)
        return thread, said


@pytest.fixture
def cluster() -> Any:
    made = Cluster()
    yield made
    made.scheduler.stop()


def test_closed_scheduler_refuses_closures(cluster: Cluster) -> None:
    before = cluster.scheduler.submit("f", b"", None, name="step")
    cluster.scheduler.stop()
    with pytest.raises(CancelledError, match="the coordinator was closed"):
        before.fetch(0)
    with pytest.raises(FailedPreconditionError, match="the coordinator is closed"):
        cluster.scheduler.submit("f", b"", None, name="step")
    cluster.scheduler.wait_idle(0)


def test_first_error_that_stops_scheduler_is_the_one_raised(cluster: Cluster) -> None:
    before = cluster.scheduler.submit("f", b"", None)
    for reason in ("first", "second"):
        cluster.scheduler.stop(UnavailableError(reason))
    for ask in (lambda: before.fetch(0), lambda: submitted(cluster.scheduler)):
        with pytest.raises(UnavailableError, match="first"):
            ask()


def test_cancelled_queued_closure_never_runs(cluster: Cluster) -> None:
    values = [cluster.scheduler.submit("f", b"", None, name="step") for _ in range(4)]
    assert values[3].cancel()
    assert values[3].cancel(), "it stays cancelled"
    with pytest.raises(CancelledError, match=r"step \(closure 3\) was cancelled by"):
        values[3].fetch(0)
    for closure in range(3):
        cluster.ends(closure)
    cluster.scheduler.wait_idle(0)
    runs = [item.closure.id for item in cluster.orders() if isinstance(item, StartRun)]
    assert runs == [0, 1, 2]
    assert not values[0].cancel()
    assert not values[0].cancelled()
    assert repr(values[3]) == "<RemoteValue closure=3 cancelled>"
    counts = cluster.scheduler.counts()
    assert (counts["finished"], counts["failed"], counts["cancelled"]) == (3, 0, 1)


def test_cancel_returns_when_granted_and_join_returns_when_run_has_ended(
    cluster: Cluster,
) -> None:
    value = cluster.scheduler.submit("f", b"", None)
    cluster.orders()
    thread, said = cluster.cancels(value)
    cluster.scheduler.trainers.cancel_answered(0, 0, 0, is_granted=True)
    thread.join(DEADLINE_S)
    assert said == [True]
    with pytest.raises(CancelledError):
        value.fetch(0)
    words = (
        r"closure 0, which trainer 0 has taken on .*, where it is cancelled and does not return: "
    )
    with pytest.raises(DeadlineExceededError, match=words):
        cluster.scheduler.wait_idle(0)
    cluster.ends(0, CancelledError("not committed"))
    cluster.scheduler.wait_idle(0)


def test_cancel_returns_false_when_trainer_refuses_it(cluster: Cluster) -> None:
    value = cluster.scheduler.submit("f", b"", None)
    cluster.orders()
    thread, said = cluster.cancels(value)
    cluster.scheduler.trainers.cancel_answered(0, 0, 0, is_granted=False)
    thread.join(DEADLINE_S)
    assert said == [False]
    cluster.ends(0)
    assert value.fetch(0) == "value 0"


def test_cancel_succeeds_when_trainer_is_lost_before_answering(cluster: Cluster) -> None:
    value = cluster.scheduler.submit("f", b"", None)
    cluster.orders()
    thread, said = cluster.cancels(value)
    cluster.scheduler.trainers.silence(0)
    cluster.scheduler.trainers.lost(0, Settlement({}, {}, {}))
    thread.join(DEADLINE_S)
    assert said == [True]
    assert cluster.scheduler.counts()["waiting"] == 0


def test_cancel_timeout_names_the_unanswered_closure(cluster: Cluster) -> None:
    value = cluster.scheduler.submit("f", b"", None, name="step")
    with pytest.raises(DeadlineExceededError, match=r"trainer to say whether step \(closure 0\)"):
        value.cancel(0)


def test_timeout_errors_name_the_closure_waited_for(cluster: Cluster) -> None:
    values = [cluster.scheduler.submit("f", b"", None, name="step") for _ in range(4)]
    with pytest.raises(TimeoutError, match=r"step \(closure 0\), which trainer 0 has taken on"):
        values[0].fetch(0)
    with pytest.raises(TimeoutError, match=r"closure 3.*waits in the queue, with 1 others"):
        values[3].get(0)
    for closure in (0, 2, 3):
        cluster.ends(closure)
    words = r"0 closures wait, 1 run, 1 .*first closure is step \(closure 1\), which trainer 0 has"
    with pytest.raises(TimeoutError, match=words):
        cluster.scheduler.wait_idle(0)


def test_error_raised_repeatedly_does_not_grow_its_traceback(cluster: Cluster) -> None:
    scheduler = cluster.scheduler
    value = scheduler.submit("f", b"", None)
    cluster.ends(0, ValueError("of the step"))
    told = [raised(lambda: value.fetch(0)) for _ in range(3)]
    assert raised(lambda: scheduler.wait_idle(0)).value is told[0].value
    scheduler.stop(UnavailableError("no trainer"))
    for ask in (scheduler.is_idle, lambda: scheduler.wait_idle(0), lambda: submitted(scheduler)):
        told += [raised(ask) for _ in range(3)]
    assert {one.typename for one in told} == {"ValueError", "UnavailableError"}
    assert all(len(one.traceback) <= 6 for one in told)


def raised(ask: Callable[[], object]) -> pytest.ExceptionInfo[Exception]:
    with pytest.raises((ValueError, UnavailableError)) as caught:
        ask()
    return caught


def submitted(scheduler: Scheduler) -> Any:
    return scheduler.submit("f", b"", None, name="step")


def test_queued_closure_past_its_deadline_fails_without_affecting_others(cluster: Cluster) -> None:
    submit = cluster.scheduler.submit
    values = [submit("f", b"", None) for _ in range(2)]
    late = submit("f", b"", None, name="step", deadline_s=0.001)
    other = submit("f", b"", None, deadline_s=1e6)
    with pytest.raises(DeadlineExceededError, match=r"step \(closure 2\) had not begun"):
        late.fetch(DEADLINE_S)
    assert not late.cancelled()
    assert not late.cancel()
    for closure in (0, 1, 3):
        cluster.ends(closure)
    cluster.scheduler.wait_idle(0)
    assert [value.fetch(0) for value in (*values, other)] == ["value 0", "value 1", "value 3"]
    assert len(cluster.core.deadlines._heap) == 0


def test_running_closure_past_its_deadline_is_not_committed(cluster: Cluster) -> None:
    late = cluster.scheduler.submit("f", b"", None, deadline_s=0.001)
    assert isinstance(cluster._items.get(timeout=DEADLINE_S), StartRun)
    assert cluster._items.get(timeout=DEADLINE_S) == CancelRun(0, 0)
    cluster.ends(0, CancelledError("not committed"))
    with pytest.raises(DeadlineExceededError, match="nothing of it is applied"):
        late.fetch(0)
    cluster.scheduler.wait_idle(0)


def test_identical_errors_are_reported_once_with_their_count(cluster: Cluster) -> None:
    cluster.scheduler.trainers.joined(1, 2, Outbox())
    for _ in range(4):
        cluster.scheduler.submit("f", b"", None)
    mine = [order.closure.id for order in cluster.orders()]
    for closure in (*mine, *({0, 1, 2, 3} - {*mine})):
        trainer, text = int(closure not in mine), "first" if closure == mine[0] else "same"
        cluster.scheduler.trainers.results(trainer, [RunResult(closure, 0, None, ValueError(text))])
    with pytest.raises(ValueError, match="first") as raised:
        cluster.scheduler.wait_idle(0)
    assert raised.value.__notes__ == ["Also failed, 3 times: ValueError: same"]
