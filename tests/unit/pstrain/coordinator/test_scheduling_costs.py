"""What a coordinator computes for one trainer does not grow with the number of the others."""

from __future__ import annotations

import itertools
import random

import pytest

from pstrain.consistency import ASYNC, Consistency, ssp, sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import Outbox, RoundPart, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler
from tests.unit.counted_calls import calls_of

SLOTS = 3
WAITING = 4_000


class Cluster:
    """A scheduler with ``trainers`` made-up trainers, for which closures wait."""

    def __init__(self, trainers: int, rule: Consistency) -> None:
        slots = 1 if rule.name == "sync" else SLOTS
        self.core = Core(attempts_max=3, consistency=rule, trainer_indices=range(trainers))
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=1 << 20, trainer_timeout_s=60.0
        )
        self.outboxes = [Outbox() for _ in range(trainers)]
        for trainer, outbox in enumerate(self.outboxes):
            self.scheduler.trainers.joined(trainer, slots, outbox)
        for _ in range(WAITING):
            self.scheduler.submit("step", b"", ((), {}))

    def end_one(self, trainer: int) -> None:
        """Reports the end of the trainer's first run, if it has any, and applies full rounds."""
        if not (results := self._results(trainer)):
            return
        self.scheduler.trainers.results(trainer, results)
        while not self.core.orders.empty():
            order = self.core.orders.get()
            assert order is not None
            self.scheduler.rounds.applied(order)

    def _results(self, trainer: int) -> list[RunResult]:
        part = RoundPart(f"trainer-{trainer}", (0,), True) if self.core.in_rounds else None
        while not self.outboxes[trainer].empty():
            order = self.outboxes[trainer].get()
            if isinstance(order, StartRun):
                closure = order.closure.id
                return [RunResult(closure, order.attempt, 1.0, None, part=part, seconds=60.0)]
        return []


def calls_for_results(trainers: int, rule: Consistency) -> float:
    """Counts the calls for a result, after the trainers have come apart as far as they may."""
    cluster, rng = Cluster(trainers, rule), random.Random(0)
    order = [rng.randrange(trainers) for _ in range(8 * trainers)]
    for trainer in order[: 4 * trainers]:
        cluster.end_one(trainer)
    finished = cluster.core.state.finished_count
    calls = calls_of(lambda: [cluster.end_one(each) for each in order[4 * trainers :]])
    return calls / (cluster.core.state.finished_count - finished)


@pytest.mark.parametrize("rule", [ASYNC, ssp(1), ssp(20), sync()], ids=str)
def test_result_costs_the_same_however_many_trainers_there_are(rule: Consistency) -> None:
    assert calls_for_results(200, rule) < 1.3 * calls_for_results(20, rule)
