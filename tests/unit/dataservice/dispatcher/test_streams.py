"""A worker's stream to a reader at the dispatcher: what a new stream ends, and what a late
request of an old stream gets. Requests are numbered; copies and stragglers must not lease
windows on which nobody would work.
"""

from __future__ import annotations

import pytest

from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.presence import Presence
from dataservice.dispatcher.reports import ReaderReport
from dataservice.dispatcher.requests import (
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.soft_state import SoftState
from dataservice.job_options import JobOptions
from dataservice.ranges import RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import ALL_WINDOWS, ShardingPolicy
from tests.unit.manual_clock import ManualClock

BEGIN = (RowMark(ALL_WINDOWS, 0, 0, False),)


def plan_windows(plan: bytes, repetition: int, _options: JobOptions) -> WindowPlan:
    splits = tuple(Split(start=i, stop=i + 1, rows=1) for i in range(len(plan)))
    return WindowPlan(splits=splits, target_rows=1, repetition=repetition)


@pytest.fixture
def service() -> DispatcherService:
    service = DispatcherService(clock=ManualClock(), planner=plan_windows)
    service.register_dataset(
        RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="AUTO")
    )
    service.register_worker(RegisterWorker(worker_id="w", address="w:1"))
    service.openings.open(
        OpenIteration(
            dataset_id="1000",
            policy=ShardingPolicy.DYNAMIC,
            job_name=None,
            repetition=0,
            delivery="exactly_once",
            reader_id="r",
            job_id="j",
            iteration_id="i",
        )
    )
    return service


def lease(
    service: DispatcherService, sequence: int, returned: tuple[RowMark, ...] = ()
) -> list[tuple[int, int]]:
    request = LeaseWindows(
        worker_id="w",
        iteration_id="i",
        reader_id="r",
        count=1,
        returned=returned,
        sequence=sequence,
    )
    answer = service.lease_windows(request)
    return [(granted.window_index, granted.generation) for granted in answer.leases]


def answer_fences(service: DispatcherService, broken: tuple[str, ...] = ()) -> int:
    """Has the reader release the windows that it is asked for; returns how many these were."""
    asked = Sync(reader_id="r", iteration_id="i", broken_worker_ids=broken)
    fences = service.sync(asked, ReaderReport())[0].fences
    service.sync(Sync(reader_id="r", iteration_id="i", released=fences), ReaderReport())
    return len(fences)


def test_new_stream_ends_leases_of_old_stream(service: DispatcherService) -> None:
    assert lease(service, 1, BEGIN) == [(0, 0)]
    assert lease(service, 2, BEGIN) == []
    assert answer_fences(service) == 1
    assert lease(service, 3) == [(0, 1)]


def test_repeated_first_request_of_stream_gets_same_lease(service: DispatcherService) -> None:
    assert lease(service, 1, BEGIN) == lease(service, 1, BEGIN) == [(0, 0)]
    assert answer_fences(service) == 0


def test_late_request_of_old_stream_gets_nothing(service: DispatcherService) -> None:
    lease(service, 1, BEGIN)
    lease(service, 3, BEGIN)
    answer_fences(service)
    assert lease(service, 2) == []
    assert lease(service, 4) == [(0, 1)]


def test_copy_of_denied_request_is_denied_later(
    service: DispatcherService,
) -> None:
    lease(service, 1, BEGIN)
    assert lease(service, 2) == []
    answer_fences(service, broken=("w",))
    assert lease(service, 2) == []
    assert lease(service, 3, BEGIN) == [(0, 1)]


def test_denials_of_reader_are_forgotten_with_it() -> None:
    # Also if the reader went with its job, for which there is no event of its own.
    soft_state = SoftState(Presence(10.0, 60.0, 0.0))
    request = LeaseWindows(worker_id="w", iteration_id="i", reader_id="r", count=1, sequence=2)
    soft_state.record_denial(request)
    assert soft_state.was_denied(request)
    soft_state.forget_readers(["r"])
    assert not soft_state.was_denied(request)
