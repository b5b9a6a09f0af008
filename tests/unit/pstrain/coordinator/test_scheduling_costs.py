"""What a coordinator computes for one trainer does not grow with the number of the others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from pstrain.consistency import ASYNC, Consistency, ssp, sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RoundPart, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import OutOfRangeError
from tests.unit.counted_calls import calls_of

SLOTS = 3
WAITING = 4_000
DATA = frozenset({"iterator"})


class Cluster:
    """A scheduler with ``trainers`` made-up trainers, for which closures wait."""

    def __init__(self, trainers: int, rule: Consistency, *, bound: bool = False) -> None:
        slots = 1 if rule.name == "sync" else SLOTS
        self.core = Core(attempts_max=100, consistency=rule, trainer_indices=range(trainers))
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=1 << 20, trainer_timeout_s=60.0
        )
        self.outboxes = [Outbox() for _ in range(trainers)]
        for trainer, outbox in enumerate(self.outboxes):
            self.scheduler.trainers.joined(trainer, slots, outbox)
        for number in range(WAITING):
            trainer = number % trainers if bound else None
            self.scheduler.submit("step", b"", ((), {}), trainer, iterators=DATA)

    def end_one(self, trainer: int, *, has_data: bool = True) -> bool:
        """Reports the end of the trainer's first run, if it has any, and applies full rounds."""
        results = self._results(trainer)
        if not has_data:
            end = OutOfRangeError("no rows")
            results = [run._replace(error=end, part=None, ended_iterators=DATA) for run in results]
        if not results:
            return False
        self.scheduler.trainers.results(trainer, results)
        while not self.core.orders.empty():
            order = self.core.orders.get()
            assert order is not None
            self.scheduler.rounds.applied(order)
        return True

    def _results(self, trainer: int) -> list[RunResult]:
        part = RoundPart(f"trainer-{trainer}", (0,), True) if self.core.in_rounds else None
        while not self.outboxes[trainer].empty():
            order = self.outboxes[trainer].get()
            if isinstance(order, StartRun):
                closure = order.closure.id
                return [RunResult(closure, order.attempt, 1.0, None, part=part, seconds=60.0)]
        return []


class Unwalked(dict[int, Any]):
    """A dict that may be asked for single keys only, as long as it has any."""

    def _walk(self) -> Iterator[Any]:
        assert not self, "a trainer's loss must not take a walk through what others run"
        return iter(())

    __iter__ = keys = values = items = _walk  # type: ignore[assignment]


def calls_for_results(trainers: int, rule: Consistency, *, bound: bool, silent: int) -> float:
    """Counts the calls for a result, after the trainers have come apart as far as they may.

    ``silent``: so many trainers do not end what they run.
    """
    cluster, rng = Cluster(trainers, rule, bound=bound), random.Random(0)
    order = [rng.randrange(trainers - silent) for _ in range(8 * trainers)]
    for trainer in order[: 4 * trainers]:
        cluster.end_one(trainer)
    finished = cluster.core.state.finished_count
    calls = calls_of(lambda: [cluster.end_one(each) for each in order[4 * trainers :]])
    return calls / (cluster.core.state.finished_count - finished)


@pytest.mark.parametrize(
    ("rule", "bound", "silent"),
    [
        (ASYNC, False, 0),
        (ASYNC, True, 0),
        (ssp(1), False, 0),
        (ssp(20), False, 0),
        (sync(), False, 0),
        (sync(backup_workers=2), False, 2),
    ],
)
def test_result_costs_the_same_however_many_trainers_there_are(
    rule: Consistency, bound: bool, silent: int
) -> None:
    few, many = (calls_for_results(n, rule, bound=bound, silent=silent) for n in (20, 200))
    assert many < 1.3 * few


def calls_at_the_end_of_data(trainers: int, rule: Consistency) -> tuple[float, float]:
    """Counts runs and calls for each trainer from when all but one have no more data.

    That one still has some for each of the others.
    """
    cluster, runs = Cluster(trainers, rule), 0
    state = cluster.core.state

    def play() -> None:
        nonlocal runs
        for trainer in [*range(trainers)] * 4 * SLOTS:
            if not state.failed:
                has_data = state.finished_count < SLOTS * trainers
                runs += cluster.end_one(0, has_data=has_data)
                runs += bool(trainer) and cluster.end_one(trainer, has_data=False)

    calls = calls_of(play)
    assert state.failed
    assert state.finished_count == SLOTS * trainers
    return runs / trainers, calls / trainers


@pytest.mark.parametrize("rule", [ASYNC, ssp(1)], ids=str)
def test_end_of_data_costs_the_same_for_each_trainer_however_many_there_are(
    rule: Consistency,
) -> None:
    few, many = (calls_at_the_end_of_data(n, rule) for n in (20, 200))
    assert many[0] < 1.1 * few[0] < 2.5 * SLOTS
    assert many[1] < 1.3 * few[1]


@pytest.mark.parametrize("rule", [ASYNC, ssp(1), sync()], ids=str)
def test_loss_of_a_trainer_costs_the_same_however_many_others_there_are(rule: Consistency) -> None:
    cluster = Cluster(20, rule)
    for trainer in range(10):
        cluster.end_one(trainer)
    state = cluster.core.state
    state.running, state.round.prepared = Unwalked(state.running), Unwalked(state.round.prepared)
    state.trainers = Unwalked(state.trainers)
    for trainer in range(20):
        cluster.scheduler.trainers.silence(trainer)
        assert not state.is_settled
        cluster.scheduler.trainers.lost(trainer, Settlement({}, {}, {}))
    assert state.lost_count == 20
    assert state.is_settled
    assert len(state.attempts) == WAITING - (0 if cluster.core.in_rounds else 10)
