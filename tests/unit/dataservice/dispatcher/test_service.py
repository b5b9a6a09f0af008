"""The service over time: leases, presence, collection, and waiting for windows.

Without a real clock and sockets: time stands still unless a test moves it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import Sync
from dataservice.dispatcher.service import DispatcherService
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dataservice.ranges import RowMark
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from tests.unit.dataservice.dispatcher.dispatcher_services import (
    WAIT_S,
    add_worker,
    eventually,
    lease_request,
    open_reader,
    open_request,
    read_service,
    register,
    service_of,
    sync,
)
from tests.unit.manual_clock import ManualClock


def test_only_silent_worker_is_lost_after_timeout() -> None:
    clock = ManualClock()
    service = read_service(clock=clock, worker_timeout_s=10.0)
    add_worker(service, "w2")
    service.lease_windows(lease_request())
    for _ in range(11):
        clock.advance(1.0)
        service.heartbeat("w2", (), WorkerReport())
        service.tick()
    assert [worker["worker_id"] for worker in service.overview.status()["workers"]] == ["w2"]
    with pytest.raises(NotFoundError, match="not registered"):
        service.heartbeat("w1", (), WorkerReport())
    assert sync(service)[0] == (RowMark(0, 0, 0, False),), "its window is fenced"


def test_silent_reader_is_fenced_and_its_rows_go_to_others() -> None:
    clock = ManualClock()
    service = read_service(
        clock=clock, windows=1, readers=("r1", "r2"), client_timeout_s=10.0, worker_timeout_s=100.0
    )
    service.lease_windows(lease_request("r1"))
    sync(service, "r1", consumed=(RowMark(0, 0, 3, False),))
    for _ in range(11):
        clock.advance(1.0)
        sync(service, "r2")
        service.tick()
    with pytest.raises(FailedPreconditionError, match="fenced"):
        sync(service, "r1")
    lease = service.lease_windows(lease_request("r2")).leases[0]
    assert (lease.start_row, lease.generation) == (3, 1)


def silent_service(clock: ManualClock) -> DispatcherService:
    """Returns a service that has heard nobody for long; its only reader has one row of two."""
    service = read_service(clock=clock, windows=2, client_timeout_s=10.0, worker_timeout_s=10.0)
    service.lease_windows(lease_request("r1"))
    sync(service, "r1", consumed=(RowMark(0, 0, 1, True),))
    for _ in range(30):
        clock.advance(1.0)
        service.tick()
    assert service.overview.status()["workers"] == []
    return service


def test_program_beside_a_reader_that_nobody_could_take_for_lost_is_told_what_is_missing() -> None:
    service = silent_service(ManualClock())
    request = open_request("r2", reader_pid=2, program_age_s=1.0)
    assert "partly read by" in service.openings.open(request)[0].notice
    assert service.openings.open(replace(request, reader_id="r3"))[0].notice == "", "r2 reads"


def test_call_that_is_refused_until_a_silent_reader_is_lost_is_heard() -> None:
    clock = ManualClock()
    service = silent_service(clock)
    for _ in range(8):
        with pytest.raises(InvalidArgumentError, match="delivery"):
            service.openings.open(open_request("r2", delivery="at_most_once"))
        clock.advance(1.0)
        service.tick()
    with pytest.raises(FailedPreconditionError, match="fenced"):
        sync(service, "r1")


def test_reader_is_told_workers_and_number_of_readers_until_iteration_is_finished() -> None:
    service = read_service(windows=1, readers=("r1", "r2"))
    request = Sync(reader_id="r1", iteration_id="i1")
    _, update = service.sync(request, ReaderReport())
    assert ([worker.worker_id for worker in update.workers], update.readers) == (["w1"], 2)
    service.lease_windows(lease_request("r2"))
    sync(service, "r2", consumed=(RowMark(0, 0, 1, True),))
    answer, update = service.sync(request, ReaderReport())
    assert answer.iteration_finished
    assert update.workers == ()


def test_suspended_dispatcher_loses_no_worker_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    service = service_of(clock=clock, worker_timeout_s=10.0)
    add_worker(service)
    clock.advance(3600.0)
    service.tick()
    assert len(service.overview.status()["workers"]) == 1
    assert "this dispatcher was suspended for" in caplog.text
    assert "does not count as silence" in caplog.text


@pytest.mark.parametrize(("timeout_s", "left"), [(5.0, 0), (None, 1)])
def test_unread_iterations_are_collected_after_gc_timeout(
    timeout_s: float | None, left: int
) -> None:
    clock = ManualClock()
    service = service_of(
        clock=clock,
        worker_timeout_s=100.0,
        job_gc_timeout_s=timeout_s,
        job_gc_check_interval_s=1.0,
    )
    register(service)
    add_worker(service)
    open_reader(service, policy=ShardingPolicy.OFF)
    service.release_reader("r1", ())
    for _ in range(7):
        clock.advance(1.0)
        service.tick()
    assert sum(len(job["iterations"]) for job in service.overview.jobs()) == left


@pytest.mark.parametrize(("interval_s", "tick_s"), [(600.0, 1.0), (0.2, 0.2), (0.001, 0.05)])
def test_service_ticks_as_often_as_it_is_to_look_for_unread_jobs(
    interval_s: float, tick_s: float
) -> None:
    assert service_of(job_gc_check_interval_s=interval_s).tick_s == tick_s


def test_leaving_worker_is_removed_at_once() -> None:
    service = service_of()
    endpoint = DispatcherEndpoint(service)
    worker_id = endpoint.register_worker(pb.RegisterWorkerRequest(address="a:1")).worker_id
    for _ in range(2):
        request = pb.WorkerHeartbeatRequest(worker_id=worker_id, leaving=True)
        endpoint.worker_heartbeat(request)
    assert service.overview.status()["workers"] == []


# Waiting


def wait_for_windows(service: DispatcherService, pool: ThreadPoolExecutor, reader: str) -> object:
    """Starts a long poll and returns once it is waiting."""
    future = pool.submit(service.lease_windows, lease_request(reader), WAIT_S)
    eventually(lambda: service._store._waiting)
    return future


@pytest.fixture
def contended() -> DispatcherService:
    """Returns a service with one window, leased for r1; r2 has nothing."""
    service = read_service(windows=1, readers=("r1", "r2"))
    service.lease_windows(lease_request("r1"))
    return service


def test_waiting_lease_gets_windows_of_released_reader(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.release_reader("r1", ())
        answer = future.result(WAIT_S)  # type: ignore[attr-defined]
    assert [lease.window_index for lease in answer.leases] == [0]


def test_waiting_lease_returns_at_end_of_iteration(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        sync(contended, "r1", consumed=(RowMark(0, 0, 1, True),))
        assert future.result(WAIT_S) == ((), True, 0.0)  # type: ignore[attr-defined]
    assert contended._store._waiting == {}


def test_waiting_lease_returns_when_its_reader_leaves(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.release_reader("r2", ())
        assert future.result(WAIT_S) == ((), True, 0.0)  # type: ignore[attr-defined]


def test_closing_service_ends_waiting_leases(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.close()
        with pytest.raises(UnavailableError, match="shutting down"):
            future.result(WAIT_S)  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="shutting down"):
        contended.overview.status()


def test_lease_without_wait_or_count_returns_at_once(contended: DispatcherService) -> None:
    assert contended.lease_windows(lease_request("r2"), 0.0) == ((), False, 0.0)
    assert contended.lease_windows(lease_request("r2", count=0), WAIT_S) == ((), False, 0.0)


def test_lease_beyond_poll_limit_is_told_to_pause() -> None:
    service = read_service(windows=1, readers=("r1", "r2", "r3"), max_polls=1)
    service.lease_windows(lease_request("r1"))
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(service, pool, "r2")
        leases, ended, pause_s = service.lease_windows(lease_request("r3"), WAIT_S)
        assert (leases, ended, pause_s > 0) == ((), False, True)
        assert not service.lease_windows(lease_request("r3"), 0.0).pause_s, "it would not wait"
        service.release_reader("r1", ())
        assert future.result(WAIT_S).leases  # type: ignore[attr-defined]
        # A slot is free again.
        future = wait_for_windows(service, pool, "r3")
        service.release_reader("r3", ())
        assert future.result(WAIT_S).ended  # type: ignore[attr-defined]


def test_failed_wait_frees_its_poll_slot(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.leave("w1")
        with pytest.raises(NotFoundError, match="w1 is not registered"):
            future.result(WAIT_S)  # type: ignore[attr-defined]
    assert contended._polls.taken == 0
