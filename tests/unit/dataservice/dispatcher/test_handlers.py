"""Planning by the handlers of open and save: once per job, outside the lock, by few threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.snapshot_requests import StartSnapshot
from dataservice.errors import FailedPreconditionError, UnavailableError
from dataservice.job_options import JobOptions
from dataservice.ranges import Consumed, Ranges
from dataservice.sharding import Split
from dataservice.vocabulary import DatasetId, ShardingPolicy, SnapshotId
from dataservice.windowing import Windows, make_windows
from tests.unit.dataservice.dispatcher.dispatcher_services import (
    WAIT_S,
    eventually,
    open_reader,
    plan_windows,
    register,
)
from tests.unit.manual_clock import ManualClock


@pytest.mark.parametrize("datasets", [1, 4])
def test_trainers_opening_job_together_plan_it_once(datasets: int) -> None:
    """Even if each trainer has registered the dataset by itself."""
    planned = []
    may_plan = threading.Event()

    def slow_planner(plan: bytes, repetition: int, options: JobOptions) -> WindowPlan:
        planned.append(repetition)
        assert may_plan.wait(WAIT_S)
        return plan_windows(plan, repetition, options)

    service = DispatcherService(clock=ManualClock(), planner=slow_planner)
    ids = [register(service) for _ in range(datasets)]
    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(open_reader, service, f"r{i}", dataset_id=ids[i % datasets])
            for i in range(4)
        ]
        eventually(lambda: planned)
        assert len(service.overview.datasets()) == datasets, "planning does not hold the lock"
        may_plan.set()
        assert {future.result(WAIT_S) for future in futures} == {"i1"}
    assert planned == [0]
    assert not service.openings._listing_limit._turns, "what is kept of a job that was planned"


def test_snapshots_started_together_are_planned_once() -> None:
    """Even if a client repeats its request, since listing takes so long."""
    planned = []
    may_plan = threading.Event()

    def slow_planner(plan: bytes) -> WindowPlan:
        planned.append(plan)
        assert may_plan.wait(WAIT_S)
        return plan_windows(plan, 0, JobOptions())

    service = DispatcherService(
        clock=ManualClock(), planner=plan_windows, snapshot_planner=slow_planner
    )
    register(service)

    def start(snapshot: str, path: str = "/there") -> tuple[SnapshotId, bool]:
        request = StartSnapshot(
            snapshot_id=SnapshotId(snapshot),
            dataset_id=DatasetId("1000"),
            path=path,
            compression="LZ4",
        )
        return service.snapshots.start(request)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(start, each) for each in ("s1", "s1", "s2")]
        eventually(lambda: planned)
        may_plan.set()
        started = {future.result(WAIT_S) for future in futures}
    (first,) = {snapshot_id for snapshot_id, _ in started}
    assert len(planned) == 1
    assert start("s3") == (first, True)
    assert start("s4", "/elsewhere") == ("s4", False)
    assert len(planned) == 2


def slow_service(max_planners: int) -> tuple[DispatcherService, threading.Event, threading.Event]:
    """Returns a service, an event that it sets as it begins to plan, and one that it awaits."""
    begun, may_plan = threading.Event(), threading.Event()

    def slow_planner(plan: bytes, repetition: int, options: JobOptions) -> WindowPlan:
        begun.set()
        assert may_plan.wait(WAIT_S)
        return plan_windows(plan, repetition, options)

    service = DispatcherService(
        clock=ManualClock(), planner=slow_planner, max_planners=max_planners
    )
    register(service)
    return service, begun, may_plan


def test_open_beyond_planner_limit_is_unavailable_until_planned() -> None:
    service, begun, may_plan = slow_service(max_planners=1)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(open_reader, service, "r1")
        assert begun.wait(WAIT_S)
        with pytest.raises(
            UnavailableError, match=r"cannot list the sources of job 'train' yet.*try again"
        ):
            open_reader(service, "r2")
        may_plan.set()
        assert future.result(WAIT_S) == "i1"
    assert open_reader(service, "r2") == "i1"
    assert open_reader(service, "r3", job_name="other", iteration_id="i2") == "i2", "a plan again"


def test_open_that_waited_too_long_for_plan_frees_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataservice.dispatcher.listing_limit.PLAN_WAIT_S", 0.01)
    service, begun, may_plan = slow_service(max_planners=2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(open_reader, service, "r1")
        assert begun.wait(WAIT_S)
        for _ in range(3):
            with pytest.raises(UnavailableError, match="cannot list the sources"):
                open_reader(service, "r2")
        with service.openings._listing_limit.exclusive("dataset other"):
            pass  # one thread lists and none waits, so there is room
        may_plan.set()
        assert future.result(WAIT_S) == "i1"
    assert open_reader(service, "r2") == "i1"


def test_windows_before_late_position_are_made_outside_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    splits = tuple(Split(start=i, stop=i + 1, rows=1) for i in range(8))
    endless = WindowPlan(splits=splits, target_rows=1, rounds=None, shuffle_seed=1)
    service = DispatcherService(clock=ManualClock(), planner=lambda *_: endless)
    register(service)
    made: list[bool] = []

    def noting(*args: Any, **sizes: Any) -> Windows:
        made.append(service._store._lock._lock.locked())
        return make_windows(*args, **sizes)

    monkeypatch.setattr("dataservice.dispatcher.plans.make_windows", noting)
    consumed = Consumed(Ranges([(0, 8 * 50)]), {8 * 50: 1})
    position = SavedPosition(consumed=consumed, origins=("r0",), peers=("r0",), division="")
    open_reader(service, position=position)
    assert len(made) > 50
    assert sum(made) <= 1


def test_planning_failure_is_raised_to_opening_reader() -> None:
    def failing(plan: bytes, repetition: int, _options: JobOptions) -> WindowPlan:
        raise FailedPreconditionError(f"no windows for {plan!r} {repetition}")

    service = DispatcherService(clock=ManualClock(), planner=failing)
    register(service)
    with pytest.raises(FailedPreconditionError, match="no windows"):
        open_reader(service)
    assert service.overview.jobs() == []
    assert open_reader(service, policy=ShardingPolicy.OFF) == "i1"
