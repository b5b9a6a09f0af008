"""A run over dealt data: each element is used once, and a late closure holds up no other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

import dataservice as ds
from pstrain.consistency import ASYNC, Consistency, Sync
from pstrain.coordinator.per_worker import PerWorkerDataset
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import DataError
from pstrain.execution import cluster, element_ranges
from pstrain.execution.calls import End
from pstrain.execution.cluster import ClusterExecutor
from pstrain.execution.dealing import DealtDataset, DealtPass, Range
from pstrain.execution.element_ranges import Bookmark, RangeReader
from pstrain.execution.executor import Steps

DATA = ds.Dataset.range(1_000).shuffle(64, seed=3).batch(4)  # 250 elements
LATE, UNTIL = 2, 40


class ConditionRefusingToWait(threading.Condition):
    """A condition that fails the test in place of a wait, which nothing would end."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        assert predicate(), f"the run waits for closure {LATE}, which is late"
        return super().wait_for(predicate, timeout)


class Coordinator:
    """A coordinator that runs closures at once, except a late one, and owns their values."""

    num_trainers = 2
    strategy = SimpleNamespace(consistency=ASYNC)

    def __init__(self, late: int | None = LATE) -> None:
        self._late_one = late
        self.near: list[tuple[int, Bookmark | None]] = []
        self._reader = RangeReader(DATA)
        self._changed = ConditionRefusingToWait()
        self._late: Callable[[], None] | None = None

    def schedule(self, function: Any, args: tuple[Any, ...]) -> RemoteValue:
        _, start, count, near = args
        number = len(self.near)
        value = RemoteValue(number, self._changed, self)
        self.near.append((start, near))

        def run() -> None:
            value._set(function(self._reader, start, count, near), None)

        if number == self._late_one:
            self._late = run
            return value
        run()
        if number == UNTIL and self._late is not None:
            self._late()
        return value

    def has_ready_trainer(self) -> bool:
        return True

    def create_per_worker_dataset(self, data: Any, *, first_epoch: int) -> PerWorkerDataset:
        return PerWorkerDataset(data, self, first_epoch)  # type: ignore[arg-type]

    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None: ...

    def describe(self, closure: int) -> str:
        return str(closure)

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None: ...

    def drop_resource(self, resource_id: str) -> None: ...

    def note_iterator(self, iterator: object) -> None: ...


def step(elements: Any, count: int) -> dict[str, Any]:
    rows = [batch["id"].to_pylist() for batch in elements]
    return {"steps": len(rows), "ended": len(rows) < count, "rows": [*itertools.chain(*rows)]}


def rows_of(reports: Iterable[dict[str, Any]]) -> list[int]:
    return [row for report in reports for row in report["rows"]]


EXPECTED = [row for batch in DATA.iterator(0) for row in batch["id"].to_pylist()]


def test_late_range_delays_no_other_range_or_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(element_ranges, "_BOOKMARK_EVERY_S", 0.0)
    monkeypatch.setattr(element_ranges, "_BOOKMARK_SHARE", 0)
    monkeypatch.setattr(cluster, "_STEPS_PER_TRAINER", 8)
    coordinator: Any = Coordinator()
    elements: DealtPass = iter(DealtDataset(DATA, coordinator))
    scheduled_when_heard, reports = [], []
    for report in ClusterExecutor(coordinator).run(step, elements, Steps(None, 2)):
        scheduled_when_heard.append(len(coordinator.near))
        reports.append(report)
    late = 16  # rows
    heard = rows_of(reports)
    assert sorted(heard) == sorted(EXPECTED)
    assert heard[:late] == EXPECTED[:late]
    assert heard[late : 20 * 8] == EXPECTED[late + 8 : 21 * 8]
    # Each report is read before more ranges are dealt than there is room for.
    gaps = [when - number for number, when in enumerate(scheduled_when_heard)]
    assert max(gaps) <= 8 + 1
    nearest = [start - near.at for start, near in coordinator.near[20:] if near is not None]
    assert max(nearest) <= 8 * 2  # as many ranges as there is room for
    assert len(nearest) == len(coordinator.near) - 20
    assert len(elements._bookmarks) < 40  # of 120 bookmarks that were taken
    assert len(coordinator.near) <= 125 + 8 + 1  # few are scheduled past the end


@pytest.mark.parametrize("data", [DATA, lambda _context: DATA])
def test_passes_begin_with_given_first_epoch(data: Any) -> None:
    coordinator: Any = Coordinator()
    passes = ClusterExecutor(coordinator).dataset(data, 3)
    assert [iter(passes).epoch for _ in range(2)] == [3, 4]


@pytest.mark.parametrize(
    ("steps", "rule", "calls_per_trainer"),
    [
        (Steps(None, 1), ASYNC, 32),
        (Steps(None, 3), ASYNC, 10),
        (Steps(None, 8), ASYNC, 4),
        (Steps(None, 100), ASYNC, 4),
        (Steps(None, 1), Sync(), 4),
        (Steps(None, 1, is_watched=True), ASYNC, 4),
    ],
)
def test_trainer_has_the_more_calls_in_flight_the_shorter_they_are(
    steps: Steps, rule: Consistency, calls_per_trainer: int
) -> None:
    coordinator: Any = Coordinator(late=None)
    coordinator.strategy = SimpleNamespace(consistency=rule)
    reports = ClusterExecutor(coordinator).run_once(step, DATA, steps)
    in_flight = [len(coordinator.near) - number for number, _ in enumerate(reports)]
    assert in_flight[0] == calls_per_trainer * coordinator.num_trainers


def test_elements_left_by_calls_that_end_early_are_dealt_again() -> None:
    def two_at_most(elements: Any, count: int) -> dict[str, Any]:
        report = step(itertools.islice(elements, 2), count)
        return {**report, "ended": report["steps"] < min(count, 2)}

    for steps in (None, 101):
        coordinator: Any = Coordinator()
        reports = list(ClusterExecutor(coordinator).run_once(two_at_most, DATA, Steps(steps, 7)))
        assert sorted(rows_of(reports)) == sorted(EXPECTED[: steps and steps * 4])


def test_ordered_pass_reports_in_order_despite_late_range() -> None:
    coordinator: Any = Coordinator()
    executor = ClusterExecutor(coordinator)
    reports = executor.run_once(step, DATA, Steps(None, 2), is_in_order=True)
    assert rows_of(reports) == EXPECTED


def test_ordered_pass_stops_after_its_steps_despite_late_range() -> None:
    coordinator: Any = Coordinator()
    executor = ClusterExecutor(coordinator)
    reports = executor.run_once(step, DATA, Steps(101, 2), is_in_order=True)
    assert rows_of(reports) == EXPECTED[: 101 * 4]


@pytest.mark.parametrize("heard", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_differing_ends_of_data_are_refused_in_any_report_order(
    heard: list[int],
) -> None:
    found = [(8, False), (5, True), (1, True)]  # the second range ends at 13, the third at 17
    reports = [{"steps": steps, "ended": ended} for steps, ended in found]
    with pytest.raises(DataError, match="the pass ended before element 13, which another"):
        note_all(End(), {8 * index: reports[index] for index in heard})


def test_empty_ranges_behind_end_of_data_are_accepted() -> None:
    nothing = {"steps": 0, "ended": True}
    end = End()
    note_all(end, {16: nothing, 24: nothing, 8: {"steps": 5, "ended": True}})
    note_all(end, {0: {"steps": 8, "ended": False}})
    assert end.is_met


def note_all(end: End, reports: dict[int, dict[str, Any]]) -> None:
    for start, report in reports.items():
        end.note(Range(start, 8), report)
