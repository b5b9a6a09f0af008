"""Requests to a dispatcher with thousands of jobs and workers that must not walk all of them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from dataclasses import replace

import pytest

from dataservice.dispatcher import decide, leasing, opening, quarantine, status
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.grants import Grants, Stream
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.reports import Reports
from dataservice.dispatcher.requests import (
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.roster import find_place
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.suspicion import Case
from dataservice.dispatcher.windows import WindowTable
from dataservice.sharding import Split
from dataservice.vocabulary import IterationId, ShardingPolicy
from tests.unit.counted_calls import calls_of
from tests.unit.dataservice.dispatcher.dispatcher_facts import apply

WORKERS = ("w1", "w2", "w3")
PLAN = WindowPlan(splits=(Split(start=0, stop=1, rows=1),) * 8, target_rows=1)
OPEN = OpenIteration(
    dataset_id="1000",
    policy=ShardingPolicy.DYNAMIC,
    job_name="a",
    repetition=0,
    delivery="exactly_once",
    reader_id="r-a",
    job_id="job-a",
    iteration_id="a",
)


class CountedIterations(dict[IterationId, Iteration]):
    """Iterations by id; `walks` counts how often all of them were walked through."""

    walks = 0

    def values(self) -> ValuesView[Iteration]:
        self.walks += 1
        return super().values()


class CountedGrants(Grants):
    """Grants by stream; `walks` counts how often all of them were walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Stream]:
        self.walks += 1
        return super().__iter__()


class CountedCases(dict[int, Case]):
    """Cases by window; `walks` counts how often all of them were walked through."""

    walks = 0

    def items(self) -> ItemsView[int, Case]:
        self.walks += 1
        return super().items()


@pytest.fixture
def state() -> DispatcherState:
    """Returns a state with two jobs and three workers, each of which holds a window of each job."""
    state = DispatcherState()
    dataset = RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="AUTO")
    apply(state, decide.register_dataset(state, dataset))
    for worker in WORKERS:
        registered = RegisterWorker(worker_id=worker, address=f"{worker}:1")
        apply(state, decide.register_worker(state, registered))
    for name in ("a", "b"):
        request = replace(
            OPEN, job_name=name, reader_id=f"r-{name}", job_id=f"job-{name}", iteration_id=name
        )
        apply(state, opening.open_iteration(state, request, PLAN))
        for worker in WORKERS:
            lease = LeaseWindows(
                worker_id=worker, iteration_id=name, reader_id=f"r-{name}", count=1
            )
            apply(state, leasing.lease_windows(state, lease))
    state.iterations = CountedIterations(state.iterations)
    return state


def test_status_walks_all_iterations_once(state: DispatcherState) -> None:
    described = status.describe(state, Reports(), 0.0)
    assert [worker["windows_leased"] for worker in described["workers"]] == [2, 2, 2]
    assert state.iterations.walks == 1


def test_collecting_iteration_walks_no_other_iterations(state: DispatcherState) -> None:
    apply(state, decide.lose_reader(state, "r-a"))
    state.iterations.walks = 0
    state.apply(ev.IterationCollected(iteration_id="a"))
    assert list(state.iterations) == ["b"]
    assert state.iterations.walks == 0


def test_losing_worker_ends_its_leases_without_walking_all_iterations(
    state: DispatcherState,
) -> None:
    apply(state, decide.lose_worker(state, "w1"))
    tables = [state.iterations[name].windows for name in ("a", "b")]
    assert [list(table.leases) for table in tables if table] == [["w2", "w3"]] * 2
    apply(state, decide.delete_job(state, "a"))
    apply(state, decide.lose_worker(state, "w2"))
    assert state.iterations.walks == 0
    assert state.worker_iterations.of("w1") == state.worker_iterations.of("w2") == ()
    assert state.worker_iterations.of("w3") == ("b",)


def table_of(state: DispatcherState, iteration: str) -> WindowTable:
    table = state.iterations[iteration].windows
    assert table is not None
    return table


def test_worker_and_reader_that_go_end_their_grants_without_walking_all(
    state: DispatcherState,
) -> None:
    table = table_of(state, "a")
    grants = table.grants = CountedGrants()
    for reader in ("r-c", "r-d"):
        state.apply(
            ev.ReaderJoined(reader_id=reader, iteration_id="a", host="h", pid=1),
        )
        for worker in WORKERS:
            table.lease(worker, reader, 1, ())
    apply(state, decide.lose_worker(state, "w1"))
    assert len(grants) == 4
    apply(state, decide.lose_reader(state, "r-d"))
    assert grants.walks == 0
    assert sorted(grants) == [("w2", "r-c"), ("w3", "r-c")]
    assert grants.workers() == {"w2", "w3"}


def test_worker_that_goes_or_comes_back_settles_its_cases_without_walking_all(
    state: DispatcherState,
) -> None:
    suspicions = table_of(state, "a").suspicions
    cases = suspicions.cases = CountedCases()
    for worker in WORKERS:
        sync = Sync(reader_id="r-a", iteration_id="a", broken_worker_ids=(worker,))
        apply(state, leasing.sync(state, sync))
    apply(state, decide.lose_worker(state, "w1"))
    apply(state, quarantine.acquit(state, "w2"))
    assert [(list(case.deaths), list(case.accused)) for case in cases.values()] == [
        (["w1"], []),
        ([], ["w3"]),
    ]
    again = RegisterWorker(worker_id="w4", address="w1:1", formerly="w1")
    apply(state, decide.register_worker(state, again))
    assert list(cases) == [2]
    assert list(suspicions.windows_of) == ["w3"]
    assert cases.walks == 0


def test_worker_that_registers_splits_no_place_of_the_list_again() -> None:
    places = [f"host-{number}:%port%" for number in range(1_000)]
    find_place(places, {}, "host-0:1")
    assert calls_of(lambda: find_place(places, {0: "host-0:1"}, "host-7:1")) < 1_500
