"""A round is ordered from the servers once it is complete; its closures end when it is applied."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pstrain.consistency import Sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import DropRun, Outbox, RoundOrder, RoundPart, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import DeadlineExceededError


class Cluster:
    """A scheduler with two trainers of one slot, which prepare closures when the test says so."""

    def __init__(self, rule: Sync) -> None:
        self.core = Core(attempts_max=3, consistency=rule, trainer_indices=range(2))
        self.scheduler = Scheduler(
            self.core, ids=itertools.count(), capacity=100, trainer_timeout_s=30.0
        )
        self.outboxes = [Outbox(), Outbox()]
        for trainer, outbox in enumerate(self.outboxes):
            self.scheduler.trainers.joined(trainer, 1, outbox)

    def submit(self, count: int) -> list[Any]:
        return [self.scheduler.submit("f", b"", None) for _ in range(count)]

    def told(self, trainer: int) -> list[Any]:
        items = []
        while not self.outboxes[trainer].empty():
            items.append(self.outboxes[trainer].get_nowait())
        return items

    def runs(self, trainer: int) -> list[int]:
        return [item.closure.id for item in self.told(trainer) if isinstance(item, StartRun)]

    def prepare(self, closure: int, trainer: int) -> RoundPart:
        part = RoundPart(f"trainer-{trainer}", (0,), has_gradient=True)
        end = RunResult(closure, 0, f"value {closure}", None, part=part)
        self.scheduler.trainers.results(trainer, [end])
        return part


def test_closures_of_round_end_once_it_is_applied() -> None:
    cluster = Cluster(Sync())
    values = cluster.submit(2)
    assert [cluster.runs(trainer) for trainer in range(2)] == [[0], [1]]
    second, first = cluster.prepare(1, 1), cluster.prepare(0, 0)
    order = cluster.core.orders.get_nowait()
    assert order == RoundOrder(0, [(0, 0, first), (1, 0, second)])
    assert cluster.scheduler.rounds.is_ordered(order)
    assert not any(value.has_ended for value in values)
    cluster.scheduler.rounds.applied(order)
    assert [value.fetch(0) for value in values] == ["value 0", "value 1"]
    assert not cluster.scheduler.rounds.is_ordered(order)
    cluster.submit(2)
    assert [cluster.runs(trainer) for trainer in range(2)] == [[2], [3]]


def test_undone_round_is_ordered_again_under_another_number() -> None:
    cluster = Cluster(Sync())
    values = cluster.submit(2)
    parts = [cluster.prepare(closure, closure) for closure in range(2)]
    undone = cluster.core.orders.get_nowait()
    cluster.scheduler.rollback.undo_round()
    assert not cluster.scheduler.rounds.is_ordered(undone)
    cluster.scheduler.rounds.applied(undone)
    assert not any(value.has_ended for value in values)
    cluster.core.make_progress()
    for closure, part in enumerate(parts):
        end = RunResult(closure, 1, "again", None, part=part)
        cluster.scheduler.trainers.results(closure, [end])
    order = cluster.core.orders.get_nowait()
    assert order == RoundOrder(1, [(0, 1, parts[0]), (1, 1, parts[1])])
    cluster.scheduler.rounds.applied(order)
    assert [value.fetch(0) for value in values] == ["again", "again"]


def test_trainer_is_told_to_drop_closure_that_is_late_for_its_round() -> None:
    cluster = Cluster(Sync(1))
    cluster.submit(2)
    assert [cluster.runs(trainer) for trainer in range(2)] == [[0], [1]]
    part = cluster.prepare(1, 1)
    assert cluster.core.orders.get_nowait() == RoundOrder(0, [(1, 0, part)])
    assert cluster.told(0) == [DropRun(0, 0)]


def test_short_round_starts_when_program_waits_for_its_closures() -> None:
    cluster = Cluster(Sync())
    cluster.submit(1)
    assert cluster.runs(0) == []
    with pytest.raises(DeadlineExceededError):
        cluster.scheduler.wait_idle(0)
    assert cluster.runs(0) == [0]
