"""Steps of a closure whose trainer was lost are reported from the notes of decided parts."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.consistency import ASYNC
from pstrain.coordinator.decide import DecidedClosure
from pstrain.coordinator.lost_trainers import LostRunNotes, settle_servers
from pstrain.coordinator.per_worker import PerWorkerDataset
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.execution.cluster import ClusterExecutor
from pstrain.execution.executor import Note, NotingFunction, Steps, take
from pstrain.execution.on_trainers import OnRange, OnTrainer
from pstrain.features.weighting import Weighting
from pstrain.serialization import results
from pstrain.trainer.context import trainer_scope
from pstrain.trainer.staging import ClosureRun
from pstrain.training_steps import TrainSteps
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken


class Servers:
    """Parameter servers that have decided these parts of a trainer's closures, one per entry."""

    session = "s"
    key_maps: Any = None

    def __init__(self, *decided: list[list[Any]]) -> None:
        self._decided = decided
        self.completed: dict[int, Any] = {}

    def fence(self, _trainer: str) -> dict[int, dict[str, Any]]:
        held = [[1, 0, 1], [9, 0, 0]]
        return {
            ps: {"decided": decided, "held": held, "rows": {}}
            for ps, decided in enumerate(self._decided)
        }

    def complete(self, _trainer: str, keys: Any) -> None:
        self.completed = dict(keys)


def part(closure: int, number: int, *notes: Any, attempt: int = 0) -> list[Any]:
    note = base64.b64encode(results.encode(list(notes))).decode() if notes else None
    return [closure, attempt, number, None, 0, note]


def test_notes_from_all_servers_are_merged_in_order_without_duplicates() -> None:
    servers = Servers(
        [part(1, 1, "b", "c"), part(2, 0, "x", attempt=0)],
        [part(1, 0, "a"), part(1, 2), part(2, 0, "y", attempt=1), part(3, 0), part(1, 1, "b", "c")],
    )
    settlement = settle_servers(servers, "t")
    assert settlement.outcomes == {
        1: (LostRunNotes(["a", "b", "c"]), None),
        2: (LostRunNotes(["y"]), None),
    }
    assert settlement.decided == {
        1: DecidedClosure(0, 0, has_ended=True),
        2: DecidedClosure(1, 0, has_ended=True),
        3: DecidedClosure(0, 0),
    }
    assert servers.completed == {0: [[1, 0, 1]], 1: [[1, 0, 1]]}


def test_closure_with_decided_end_is_settled_with_its_value() -> None:
    value = base64.b64encode(results.encode(7)).decode()
    servers = Servers([part(1, 0, "a")], [[1, 0, 1, {"value": value}, 0, None]])
    assert settle_servers(servers, "t").outcomes == {1: (7, None)}


def rows_of(count: int) -> Iterator[Any]:
    rng = np.random.default_rng(3)
    dataset = ds.Dataset.from_numpy(
        {
            "price": rng.normal(size=10 * count).astype(np.float32),
            "label": rng.integers(0, 2, 10 * count),
            "weight": rng.random(10 * count).astype(np.float32),
        }
    )
    return iter(dataset.batch(10))


@pytest.mark.parametrize(
    "compiled",
    [
        {},
        {"metrics": ["auc", "accuracy"]},
        {"metrics": ["accuracy"], "weighted_metrics": ["auc"]},
    ],
    ids=["no metrics", "metrics", "weighted metrics"],
)
def test_report_from_notes_equals_report_of_steps(compiled: dict[str, Any]) -> None:
    reports = []
    for is_noted in (False, True):
        model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["price"], label="label"))
        model.compile(ps.optimizers.SGD(0.1), **compiled)
        steps = TrainSteps(model, Weighting("weight", {1: 2.0}))
        notes: list[Any] = []
        report = steps.run(rows_of(5), 5 + is_noted, noting(notes))
        assert len(notes) == 4 + is_noted
        assert report["ended"] == is_noted
        if is_noted:
            report = steps.report_of(results.decode(results.encode(notes)))
        reports.append(report)
    returned, noted = reports
    assert noted["steps"] == 5
    assert noted["examples"] == 50
    assert noted["loss_sum"] == returned["loss_sum"] > 0
    assert not noted["ended"]
    assert len(noted["states"]) == len(returned["states"]) == len(model.metrics)
    for mine, theirs in zip(noted["states"], returned["states"], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_labels_of_a_regression_are_noted_unchanged() -> None:
    made, notes = [0.25, -3.0, 1e6, 256.0], []  # type: tuple[list[float], list[Any]]
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["price"], label="label"))
    model.compile(ps.optimizers.SGD(1e-3), metrics=["mse"], loss="mse")
    rows = ds.Dataset.from_numpy({"price": np.ones(4, np.float32), "label": np.array(made)})
    steps = TrainSteps(model, Weighting(None, None))
    report = steps.run(iter(rows.batch(2)), 3, noting(notes))
    noted = steps.report_of(results.decode(results.encode(notes)))
    assert [label for step in notes for label in step.labels.tolist()] == made
    np.testing.assert_array_equal(noted["states"][0], report["states"][0])
    assert noted["loss_sum"] == report["loss_sum"] > 1e11


def noting(notes: list[Any], most: int = 100) -> Note:
    def note(step: Any) -> bool:
        notes.append(step)
        return len(notes) < most

    return note


def test_closure_ends_early_when_notes_are_full() -> None:
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["price"], label="label"))
    model.compile(ps.optimizers.SGD(0.1))
    rows = rows_of(5)
    report = TrainSteps(model, Weighting(None, None)).run(rows, 4, noting([], most=2))
    assert (report["steps"], report["ended"]) == (2, False)
    assert len(list(rows)) == 3


class SumOfNumbers(NotingFunction):
    """A noting function whose steps are numbers; a report has their sum."""

    def run(self, iterator: Any, steps: int, note: Note) -> dict[str, Any]:
        taken = []
        for number, _ in take(iterator, steps):
            taken.append(number)
            if not note(number):
                break
        return {**self.report_of(taken), "ended": len(taken) < steps}

    def report_of(self, notes: Any) -> dict[str, Any]:
        return {"steps": len(notes), "ended": False, "sum": sum(notes)}


class _Reader:
    bookmark = None

    def read(self, start: int, count: int, _near: Any) -> list[int]:
        return list(range(start, start + count))


def test_steps_are_noted_on_trainer_data_but_not_on_dealt_ranges() -> None:
    """A range is made again as a whole by any trainer, so its report needs no notes."""
    token, commits = StepToken("s", 1, 0), None
    run = ClosureRun(token, commits)  # type: ignore[arg-type]
    with trainer_scope(4), step_scope(token, run):
        report = OnTrainer(SumOfNumbers())(iter(range(5)), 3)
        assert report == {"steps": 3, "ended": False, "sum": 3, "trainer": 4}
        assert run.notes == [0, 1, 2]
        assert OnRange(SumOfNumbers())(iter([_Reader()]), 0, 3)["sum"] == 3
        assert run.notes == [0, 1, 2]


class Coordinator:
    """A coordinator that runs closures at once; some lose their trainer after a step or more."""

    num_trainers = 1
    strategy = SimpleNamespace(consistency=ASYNC)

    def __init__(self, lost: dict[int, int]) -> None:
        self._lost, self._elements = lost, iter(range(1_000))
        self._changed = threading.Condition()
        self.scheduled: list[int] = []

    def schedule(self, function: Any, args: tuple[Any, int]) -> RemoteValue:
        number = len(self.scheduled)
        value = RemoteValue(number, self._changed, self)  # type: ignore[arg-type]
        self.scheduled.append(args[1])
        if number in self._lost:
            value._set(
                LostRunNotes([next(self._elements) for _ in range(self._lost[number])]), None
            )
        else:
            with trainer_scope(0):
                value._set(function(self._elements, args[1]), None)
        return value

    def has_ready_trainer(self) -> bool:
        return True

    def live_trainers(self) -> set[int]:
        return {0}

    def stats(self) -> dict[str, int]:
        return {"losses": 0}

    def create_per_worker_dataset(self, data: Any, *, first_epoch: int) -> PerWorkerDataset:
        return PerWorkerDataset(data, self, first_epoch)  # type: ignore[arg-type]

    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None: ...

    def drop_resource(self, resource_id: str) -> None: ...

    def note_iterator(self, iterator: object) -> None: ...


def test_remaining_steps_of_lost_trainer_are_made_by_another_closure() -> None:
    coordinator: Any = Coordinator({1: 1, 3: 7})
    executor = ClusterExecutor(coordinator)
    iterator = iter(executor.dataset(lambda _context: ds.Dataset.range(1)))
    reports = []
    for report in executor.run(SumOfNumbers(), iterator, Steps(40, 8)):
        reports.append(report)
        assert all("sum" in each for each in executor.unreported())
    assert [report["steps"] for report in reports] == [8, 1, 8, 7, 8, 7, 1]
    assert sum(report["sum"] for report in reports) == sum(range(40))
    assert coordinator.scheduled == [8, 8, 8, 8, 8, 7, 1]
