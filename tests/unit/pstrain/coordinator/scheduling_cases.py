"""States, schedulers and a cluster of one trainer, on which tests of scheduling play."""

from __future__ import annotations

import itertools
import queue
from typing import Any

from pstrain.consistency import ASYNC, Consistency
from pstrain.coordinator import assigning, decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import Outbox, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.state import CoordinatorState
from tests.scheduler_invariants import check_invariants


def apply(state: CoordinatorState, events: ev.Events) -> ev.Events:
    for event in events:
        state.apply(event)
    check_invariants(state)
    return events


def started(events: ev.Events) -> list[tuple[int, int, int]]:
    return [(e.closure, e.trainer, e.attempt) for e in events if isinstance(e, ev.ClosureStarted)]


def running_state(
    closures: int, trainers: int, slots: int = 1, rule: Consistency = ASYNC
) -> CoordinatorState:
    state = CoordinatorState(rule, range(trainers))
    for trainer in range(trainers):
        apply(state, decide.join_trainer(trainer, slots))
    for closure in range(closures):
        apply(state, decide.schedule(state, closure))
    apply(state, assigning.assign(state))
    return state


def join_warm(state: CoordinatorState, trainer: int, slots: int) -> None:
    """Joins a trainer that has already ended closures."""
    apply(state, decide.join_trainer(trainer, slots))
    state.trainers[trainer].ended = slots


def scheduler(capacity: int = 3) -> tuple[Scheduler, queue.SimpleQueue[Any]]:
    """Returns a scheduler that only trainer 0 of two has joined, and the orders sent to it."""
    core = Core(attempts_max=3)
    made = Scheduler(core, ids=itertools.count(), capacity=capacity, trainer_timeout_s=30.0)
    outbox = Outbox()
    made.trainers.joined(0, 1, outbox)
    return made, outbox


class Cluster:
    """A scheduler with one trainer of one slot, which ends each closure when the test says so."""

    def __init__(self, capacity: int = 100, rule: Consistency = ASYNC) -> None:
        self.core = Core(attempts_max=3, consistency=rule)
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=capacity, trainer_timeout_s=30.0
        )
        self.outbox = Outbox()
        self.scheduler.trainers.joined(0, 1, self.outbox)

    def submit(self, *inputs: Any) -> Any:
        return self.scheduler.submit("f", b"", None, name="step", inputs=inputs)

    def run(self, error: Exception | None = None) -> int:
        """Ends the next closure, with its number as value or with ``error``; returns the number."""
        run = self.outbox.get_nowait()
        assert isinstance(run, StartRun)
        assert all(value.has_value for value in run.closure.inputs)
        number = run.closure.id
        self.scheduler.trainers.results(0, [RunResult(number, run.attempt, number, error)])
        return number
