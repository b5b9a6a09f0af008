"""The service around the decisions: durability before answers, leases in time, waiting, planning.

No clock, no sockets: time stands still unless told to move, journals are lists.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice.dispatcher.commit import GroupCommit
from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.journal_frames import decode_frame
from dataservice.dispatcher.plans import RowMark, WindowPlan
from dataservice.dispatcher.report import datasets_text, jobs_text, status_text
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import (
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.snapshot_desk import SavingSettings
from dataservice.dispatcher.snapshot_requests import StartSnapshot
from dataservice.errors import (
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dataservice.job_options import JobOptions
from dataservice.omissions import Omitted
from dataservice.ranges import Consumed, Ranges
from dataservice.runtime.brief_lock import BriefLock
from dataservice.runtime.clock import ManualClock
from dataservice.sharding import Split
from dataservice.vocabulary import DatasetId, ShardingPolicy, SnapshotId
from dataservice.windowing import Windows, make_windows
from dataservice.wire import dispatcher_pb2 as pb

WAIT_S = 10.0


def eventually(condition: Callable[[], object]) -> None:
    """Gives other threads time until the condition holds; fails when it never does."""
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("the condition never came true")


class ListJournal:
    """Keeps frames; can hold appends back, and can fail."""

    def __init__(self, frames: Sequence[bytes] = ()) -> None:
        self.frames = list(frames)
        self.writes: list[int] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.writing = threading.Event()
        self.failure: Exception | None = None

    def append(self, frames: Sequence[bytes]) -> None:
        self.writing.set()
        assert self.may_write.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        self.frames.extend(frames)
        self.writes.append(len(frames))

    def replay(self) -> Iterator[bytes]:
        return iter(self.frames)

    def replace(self, frames: Sequence[bytes]) -> None:
        self.frames = list(frames)

    def close(self) -> None:
        pass


def plan_windows(plan: bytes, repetition: int, _options: JobOptions) -> WindowPlan:
    """As many windows of one row as the plan has bytes."""
    splits = tuple(Split(start=i, stop=i + 1, rows=1) for i in range(len(plan)))
    return WindowPlan(splits=splits, target_rows=1, repetition=repetition)


def service_of(
    journal: ListJournal | None = None, clock: ManualClock | None = None, **more: object
) -> DispatcherService:
    return DispatcherService(
        clock=clock or ManualClock(),
        planner=plan_windows,
        journal=journal,
        wall_clock=lambda: 1_000.0,
        **more,
    )


def register(service: DispatcherService, windows: int = 4) -> str:
    request = RegisterDataset(plan=b"p" * windows, schema=b"s", cardinality=-2, compression="AUTO")
    return service.register_dataset(request)


def add_worker(service: DispatcherService, name: str = "w1") -> None:
    service.register_worker(RegisterWorker(worker_id=name, address=f"{name}:1"))


def open_reader(service: DispatcherService, name: str = "r1", **more: object) -> str:
    fields: dict[str, object] = {
        "dataset_id": "1000",
        "policy": ShardingPolicy.DYNAMIC,
        "job_name": "train",
        "repetition": 0,
        "delivery": "exactly_once",
        "reader_id": name,
        "job_id": f"job-{name}",
        "iteration_id": "i1",
    }
    answer, _, _ = service.openings.open(OpenIteration(**{**fields, **more}))
    return answer.iteration_id


def lease_request(reader: str = "r1", worker: str = "w1", count: int = 1) -> LeaseWindows:
    return LeaseWindows(worker_id=worker, iteration_id="i1", reader_id=reader, count=count)


def sync(service: DispatcherService, reader: str = "r1", **more: object) -> tuple[object, ...]:
    request = Sync(reader_id=reader, iteration_id="i1", **more)
    return tuple(service.sync(request, ReaderReport())[0])


# Durability


def test_an_answer_waits_until_its_facts_are_durable() -> None:
    journal = ListJournal()
    journal.may_write.clear()
    service = service_of(journal)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        assert not answer.done()
        assert journal.frames == []
        journal.may_write.set()
        assert answer.result(WAIT_S) == "1000"
    assert len(journal.frames) == 1


def test_a_read_waits_for_what_it_saw() -> None:
    journal = ListJournal()
    journal.may_write.clear()
    service = service_of(journal)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        seen = pool.submit(service.get_dataset, "1000")
        with pytest.raises(TimeoutError):
            seen.result(0.05)
        journal.may_write.set()
        assert seen.result(WAIT_S).dataset_id == "1000"


def beat(service: DispatcherService) -> tuple[object, ...]:
    return service.heartbeat("w1", ["i1"], WorkerReport()).ended


def test_who_says_and_is_told_nothing_does_not_wait_for_facts_of_others() -> None:
    journal = ListJournal()
    service = service_of(journal)
    register(service)
    add_worker(service)
    open_reader(service)
    service.lease_windows(lease_request())
    sync(service, consumed=(RowMark(0, 0, 1, False),))
    idle = Sync(reader_id="r1", iteration_id="i1")
    version = service.sync(idle, ReaderReport())[1].version
    journal.may_write.clear()
    journal.writing.clear()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        assert pool.submit(beat, service).result(WAIT_S) == ()
        pool.submit(service.sync, idle, ReaderReport(), version).result(WAIT_S)
        # What is confirmed, even if it is not new, may not have been durable.
        again = Sync(reader_id="r1", iteration_id="i1", consumed=(RowMark(0, 0, 1, False),))
        confirmed = pool.submit(service.sync, again, ReaderReport(), version)
        with pytest.raises(TimeoutError):
            confirmed.result(0.05)
        journal.may_write.set()
        confirmed.result(WAIT_S)


def test_an_answer_waits_for_no_later_write_than_its_own() -> None:
    journal = ListJournal()
    journal.may_write.clear()
    commits = GroupCommit(journal)
    commits.enqueue(b"1")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(commits.wait_durable, 1)
        assert journal.writing.wait(WAIT_S)
        commits.enqueue(b"2")
        follower = pool.submit(commits.wait_durable, 1)
        journal.may_write.set()
        first.result(WAIT_S)
        follower.result(WAIT_S)
    assert journal.frames == [b"1"]
    commits.wait_durable(2)
    assert journal.frames == [b"1", b"2"]


def test_many_threads_are_all_told_when_their_frames_are_written() -> None:
    journal = ListJournal()
    commits, order = GroupCommit(journal), BriefLock()

    def decide(number: int) -> bool:
        for step in range(20):
            with order:
                commits.enqueue(b"%d %d" % (number, step))
                ticket = commits.ticket()
                if number == 0 and step % 5 == 0:
                    commits.begin_replacing()
            commits.wait_durable(ticket)
            if number == 0 and step % 5 == 0:
                commits.replace([b"image"])
            assert commits._durable >= ticket
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(decide, range(16), timeout=WAIT_S))
    assert journal.frames[0] == b"image"
    assert commits.frames_kept == len(journal.frames)
    assert not commits._asleep


def test_a_brief_lock_excludes() -> None:
    lock, inside, total = BriefLock(), 0, 0

    def enter(_: int) -> None:
        nonlocal inside, total
        for _ in range(50):
            with lock:
                inside += 1
                assert inside == 1
                os.sched_yield()
                total += 1
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(8), timeout=WAIT_S))
    assert total == 400
    with lock:
        assert not lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0.01)


def test_a_journal_is_replaced_while_others_decide() -> None:
    journal = ListJournal([b"old"])
    commits = GroupCommit(journal)
    commits.enqueue(b"in the image")
    commits.begin_replacing()
    commits.enqueue(b"1")
    commits.wait_durable(2)
    commits.enqueue(b"2")
    commits.replace([b"image"])
    assert journal.frames == [b"image", b"1", b"2"]
    writes = len(journal.writes)
    commits.wait_durable(3)
    assert len(journal.writes) == writes, "the last write had all of them"
    commits.enqueue(b"3")
    commits.wait_durable(4)
    assert journal.frames == [b"image", b"1", b"2", b"3"]
    assert commits.frames_kept == 4


def test_the_replacement_of_a_journal_goes_before_those_who_wait_for_a_write() -> None:
    journal = ListJournal()
    journal.may_write.clear()
    commits = GroupCommit(journal)
    commits.enqueue(b"1")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(commits.wait_durable, 1)
        assert journal.writing.wait(WAIT_S)
        commits.begin_replacing()
        commits.enqueue(b"2")
        replacing = pool.submit(commits.replace, [b"image"])
        eventually(lambda: commits._is_replacing)
        follower = pool.submit(commits.wait_durable, 2)
        journal.may_write.set()
        for each in (first, replacing, follower):
            each.result(WAIT_S)
    assert journal.frames == [b"image", b"2"]


def test_decisions_made_during_a_write_share_the_next_one() -> None:
    journal = ListJournal()
    journal.may_write.clear()
    service = service_of(journal)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        others = [pool.submit(register, service) for _ in range(5)]
        eventually(lambda: service._ledger._commits.ticket() == 6)  # type: ignore[union-attr]
        journal.may_write.set()
        ids = {future.result(WAIT_S) for future in (first, *others)}
    assert ids == {str(number) for number in range(1000, 1006)}
    assert journal.writes == [1, 5]


def test_one_decision_is_one_frame() -> None:
    journal = ListJournal()
    service = service_of(journal)
    register(service)
    open_reader(service)
    names = [type(event).__name__ for event in decode_frame(journal.frames[-1])]
    assert names == [
        "JobCreated",
        "IterationCreated",
        "WindowsPlanned",
        "RoundOpened",
        "ReaderJoined",
    ]


def test_a_failed_journal_stops_all_answers() -> None:
    journal = ListJournal()
    service = service_of(journal)
    register(service)
    journal.failure = ResourceExhaustedError("no room on the disk")
    with pytest.raises(UnavailableError, match="no room on the disk"):
        register(service)
    journal.failure = None
    with pytest.raises(UnavailableError, match="cannot write its journal"):
        service.get_dataset("1000")
    assert len(journal.frames) == 1


def test_a_restart_goes_on_where_the_journal_ends() -> None:
    journal = ListJournal()
    before = service_of(journal)
    register(before)
    add_worker(before)
    open_reader(before)
    before.lease_windows(lease_request(count=2))
    sync(before, consumed=(RowMark(0, 0, 1, True),))
    after = service_of(ListJournal(journal.frames))
    assert after.overview.status() == before.overview.status()
    assert after.lease_windows(lease_request()).leases[0].window_index == 2


def test_a_long_journal_is_replaced_by_the_state_it_led_to() -> None:
    journal = ListJournal()
    service = service_of(journal)
    register(service)
    add_worker(service)
    open_reader(service)
    service._ledger._shorten_at = 30
    service.lease_windows(lease_request())
    for row in range(60):
        sync(service, consumed=(RowMark(0, 0, row, False),))
        service.tick()
    assert len(journal.frames) < 60
    restored = service_of(ListJournal(journal.frames))
    assert restored._state == service._state
    assert service._ledger._shorten_at > 30, "the next time is far enough away to be worth it"


def test_others_decide_while_the_journal_is_replaced() -> None:
    class SlowJournal(ListJournal):
        def replace(self, frames: Sequence[bytes]) -> None:
            self.writing.set()
            assert self.may_write.wait(WAIT_S)
            super().replace(frames)

    journal = SlowJournal()
    service = service_of(journal)
    register(service)
    add_worker(service)
    open_reader(service)
    service._ledger._shorten_at = 0
    journal.may_write.clear()
    journal.writing.clear()
    with ThreadPoolExecutor(2) as pool:
        ticking = pool.submit(service.tick)
        assert journal.writing.wait(WAIT_S)
        # Who only gives a sign of life does not even wait for the disk.
        assert beat(service) == ()
        leasing = pool.submit(service.lease_windows, lease_request())
        eventually(lambda: service._ledger._commits.ticket() == 4)  # type: ignore[union-attr]
        assert not leasing.done()
        journal.may_write.set()
        ticking.result(WAIT_S)
        assert leasing.result(WAIT_S).leases
    assert service_of(ListJournal(journal.frames))._state == service._state


def test_nothing_is_written_without_a_journal() -> None:
    service = service_of()
    register(service)
    assert service._ledger._commits is None


# Time


def test_everyone_counts_as_just_seen_after_a_restart() -> None:
    journal = ListJournal()
    before = service_of(journal)
    register(before)
    add_worker(before)
    open_reader(before)
    clock = ManualClock(1_000_000.0)
    after = service_of(ListJournal(journal.frames), clock, worker_timeout_s=10.0)
    after.tick()
    assert len(after.overview.status()["workers"]) == 1
    sync(after)
    for _ in range(10):
        clock.advance(1.0)
        after.tick()
    assert after.overview.status()["workers"] == []


def test_a_silent_worker_is_lost_and_a_heard_one_is_not() -> None:
    clock = ManualClock()
    service = service_of(clock=clock, worker_timeout_s=10.0)
    register(service)
    add_worker(service, "w1")
    add_worker(service, "w2")
    open_reader(service)
    service.lease_windows(lease_request())
    for _ in range(11):
        clock.advance(1.0)
        service.heartbeat("w2", (), WorkerReport())
        service.tick()
    assert [worker["worker_id"] for worker in service.overview.status()["workers"]] == ["w2"]
    with pytest.raises(NotFoundError, match="not registered"):
        service.heartbeat("w1", (), WorkerReport())
    assert sync(service)[0] == (RowMark(0, 0, 0, False),), "its window is fenced"


def test_a_silent_reader_is_fenced_and_its_rows_go_to_others() -> None:
    clock = ManualClock()
    service = service_of(clock=clock, client_timeout_s=10.0, worker_timeout_s=100.0)
    register(service, windows=1)
    add_worker(service)
    open_reader(service, "r1")
    open_reader(service, "r2")
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


def test_a_dispatcher_that_stood_still_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    service = service_of(clock=clock, worker_timeout_s=10.0)
    add_worker(service)
    clock.advance(3600.0)
    service.tick()
    assert len(service.overview.status()["workers"]) == 1
    assert "this dispatcher stood still for" in caplog.text
    assert "counts against no worker and no reader" in caplog.text


@pytest.mark.parametrize(("timeout_s", "left"), [(5.0, 0), (None, 1)])
def test_iterations_that_nobody_reads_are_collected(timeout_s: float | None, left: int) -> None:
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


def test_a_worker_that_leaves_is_gone_at_once() -> None:
    service = service_of()
    endpoint = DispatcherEndpoint(service)
    worker_id = endpoint.register_worker(pb.RegisterWorkerRequest(address="a:1")).worker_id
    for _ in range(2):
        request = pb.WorkerHeartbeatRequest(worker_id=worker_id, leaving=True)
        endpoint.worker_heartbeat(request)
    assert service.overview.status()["workers"] == []


# Waiting


def wait_for_windows(service: DispatcherService, pool: ThreadPoolExecutor, reader: str) -> object:
    """A long poll that is known to be waiting."""
    future = pool.submit(service.lease_windows, lease_request(reader), WAIT_S)
    eventually(lambda: service._ledger._waiting)
    return future


@pytest.fixture
def contended() -> DispatcherService:
    """One window, leased for r1; r2 has nothing."""
    service = service_of(clock=ManualClock())
    register(service, windows=1)
    add_worker(service)
    open_reader(service, "r1")
    open_reader(service, "r2")
    service.lease_windows(lease_request("r1"))
    return service


def test_a_waiting_worker_gets_what_a_reader_leaves(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.release_reader("r1", ())
        answer = future.result(WAIT_S)  # type: ignore[attr-defined]
    assert [lease.window_index for lease in answer.leases] == [0]


def test_a_waiting_worker_learns_of_the_end(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        sync(contended, "r1", consumed=(RowMark(0, 0, 1, True),))
        assert future.result(WAIT_S) == ((), True, 0.0)  # type: ignore[attr-defined]
    assert contended._ledger._waiting == {}


def test_a_waiting_worker_learns_that_its_reader_is_gone(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.release_reader("r2", ())
        assert future.result(WAIT_S) == ((), True, 0.0)  # type: ignore[attr-defined]


def test_closing_ends_all_waits(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.close()
        with pytest.raises(UnavailableError, match="shutting down"):
            future.result(WAIT_S)  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="shutting down"):
        contended.overview.status()


def test_without_time_to_wait_the_answer_comes_at_once(contended: DispatcherService) -> None:
    assert contended.lease_windows(lease_request("r2"), 0.0) == ((), False, 0.0)
    assert contended.lease_windows(lease_request("r2", count=0), WAIT_S) == ((), False, 0.0)


def test_only_so_many_wait_and_the_others_are_told_when_to_ask_again() -> None:
    service = service_of(max_polls=1)
    register(service, windows=1)
    add_worker(service)
    for reader in ("r1", "r2", "r3"):
        open_reader(service, reader)
    service.lease_windows(lease_request("r1"))
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(service, pool, "r2")
        leases, ended, pause_s = service.lease_windows(lease_request("r3"), WAIT_S)
        assert (leases, ended, pause_s > 0) == ((), False, True)
        assert not service.lease_windows(lease_request("r3"), 0.0).pause_s, "it would not wait"
        service.release_reader("r1", ())
        assert future.result(WAIT_S).leases  # type: ignore[attr-defined]
        # There is a seat again.
        future = wait_for_windows(service, pool, "r3")
        service.release_reader("r3", ())
        assert future.result(WAIT_S).ended  # type: ignore[attr-defined]


def test_a_wait_that_fails_gives_its_seat_back(contended: DispatcherService) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = wait_for_windows(contended, pool, "r2")
        contended.leave("w1")
        with pytest.raises(NotFoundError, match="w1 is not registered"):
            future.result(WAIT_S)  # type: ignore[attr-defined]
    assert contended._polls.taken == 0


# Planning


@pytest.mark.parametrize("datasets", [1, 4])
def test_trainers_that_open_a_job_together_plan_once(datasets: int) -> None:
    """Also where each has registered the dataset by itself."""
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
    assert not service.openings._listings._turns, "what is kept of a job that was planned"


def test_snapshots_that_are_started_together_are_planned_once() -> None:
    """Also one that its client asks for again, since listing takes so long."""
    planned = []
    may_plan = threading.Event()

    def slow_planner(plan: bytes) -> WindowPlan:
        planned.append(plan)
        assert may_plan.wait(WAIT_S)
        return plan_windows(plan, 0, JobOptions())

    service = DispatcherService(
        clock=ManualClock(), planner=plan_windows, saving=SavingSettings(slow_planner)
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
    """It tells when it has begun to plan, and goes on when it may."""
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


def test_who_may_not_wait_for_a_plan_tries_again() -> None:
    service, begun, may_plan = slow_service(max_planners=1)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(open_reader, service, "r1")
        assert begun.wait(WAIT_S)
        with pytest.raises(UnavailableError, match=r"job 'train' are being listed.*try again"):
            open_reader(service, "r2")
        may_plan.set()
        assert future.result(WAIT_S) == "i1"
    assert open_reader(service, "r2") == "i1"
    assert open_reader(service, "r3", job_name="other", iteration_id="i2") == "i2", "a plan again"


def test_who_waits_for_a_plan_makes_room_before_it_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataservice.dispatcher.listings.PLAN_WAIT_S", 0.01)
    service, begun, may_plan = slow_service(max_planners=2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(open_reader, service, "r1")
        assert begun.wait(WAIT_S)
        for _ in range(3):
            with pytest.raises(UnavailableError, match="being listed"):
                open_reader(service, "r2")
        with service.openings._listings.alone("dataset other"):
            pass  # one lists, none waits
        may_plan.set()
        assert future.result(WAIT_S) == "i1"
    assert open_reader(service, "r2") == "i1"


def test_others_are_answered_while_a_late_position_is_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    splits = tuple(Split(start=i, stop=i + 1, rows=1) for i in range(8))
    endless = WindowPlan(splits=splits, target_rows=1, rounds=None, shuffle_seed=1)
    service = DispatcherService(clock=ManualClock(), planner=lambda *_: endless)
    register(service)
    made: list[bool] = []

    def noting(*args: Any, **sizes: Any) -> Windows:
        made.append(service._ledger._lock._lock.locked())
        return make_windows(*args, **sizes)

    monkeypatch.setattr("dataservice.dispatcher.plans.make_windows", noting)
    consumed = Consumed(Ranges([(0, 8 * 50)]), {8 * 50: 1})
    position = SavedPosition(consumed=consumed, origins=("r0",), peers=("r0",), division="")
    open_reader(service, position=position)
    assert len(made) > 50
    assert sum(made) <= 1


def test_a_plan_that_cannot_be_made_is_the_readers_error() -> None:
    def failing(plan: bytes, repetition: int, _options: JobOptions) -> WindowPlan:
        raise FailedPreconditionError(f"no windows for {plan!r} {repetition}")

    service = DispatcherService(clock=ManualClock(), planner=failing)
    register(service)
    with pytest.raises(FailedPreconditionError, match="no windows"):
        open_reader(service)
    assert service.overview.jobs() == []
    assert open_reader(service, policy=ShardingPolicy.OFF) == "i1"


# The wire


def test_the_endpoint_speaks_the_wire() -> None:
    endpoint = DispatcherEndpoint(service_of())
    dataset = pb.RegisterDatasetRequest(
        plan=b"pp", schema=b"s", cardinality=2, compression="LZ4", dataset_id="mine"
    )
    assert endpoint.register_dataset(dataset).dataset_id == "mine"
    found = endpoint.get_dataset(pb.GetDatasetRequest(dataset_id="mine"))
    assert (found.plan, found.schema, found.cardinality, found.compression) == (
        b"pp",
        b"s",
        2,
        "LZ4",
    )
    worker = endpoint.register_worker(pb.RegisterWorkerRequest(address="a:1", host="a", pid=4))
    opened = endpoint.open_iteration(
        pb.OpenIterationRequest(dataset_id="mine", policy=1, reader_id="r1")
    )
    assert (opened.reader_id, opened.dataset_id, opened.schema) == ("r1", "mine", b"s")
    assert [(w.worker_id, w.address) for w in opened.workers] == [(worker.worker_id, "a:1")]
    leased = endpoint.lease_windows(
        pb.LeaseWindowsRequest(
            worker_id=worker.worker_id, iteration_id=opened.iteration_id, reader_id="r1", count=1
        )
    )
    (window,) = leased.windows
    assert (window.window, window.generation, window.start_row, window.epoch) == (0, 0, 0, 0)
    assert (window.splits[0].start, window.splits[0].stop, window.splits[0].rows) == (0, 1, 1)
    assert not window.splits[0].HasField("path")
    synced = endpoint.sync(
        pb.SyncRequest(
            reader_id="r1",
            iteration_id=opened.iteration_id,
            consumed=[pb.Mark(window=0, row=1, final=True)],
            broken_worker_ids=[worker.worker_id],
            rows_consumed=1,
        )
    )
    assert (synced.ended, synced.iteration_finished, list(synced.fences)) == (False, False, [])
    assert "mine" in endpoint.list_jobs(pb.ListJobsRequest()).json
    endpoint.release_reader(
        pb.ReleaseReaderRequest(reader_id="r1", iteration_id=opened.iteration_id)
    )
    assert endpoint.list_jobs(pb.ListJobsRequest()).json == "[]"


def test_new_readers_are_told_the_workers_that_there_are_when_they_come() -> None:
    service = service_of()
    endpoint = DispatcherEndpoint(service)
    register(service)

    def opened(reader_id: str) -> list[str]:
        request = pb.OpenIterationRequest(
            dataset_id="1000", policy=1, job_name="j", reader_id=reader_id
        )
        return [worker.address for worker in endpoint.open_iteration(request).workers]

    def synced(reader_id: str) -> list[str]:
        """Of a reader that knows no version of the set."""
        (iteration_id,) = service._state.iterations
        request = pb.SyncRequest(reader_id=reader_id, iteration_id=iteration_id)
        return [worker.address for worker in endpoint.sync(request).workers]

    assert opened("r1") == []
    add_worker(service, "w1")
    assert opened("r2") == opened("r3") == synced("r1") == ["w1:1"]
    add_worker(service, "w2")
    assert opened("r4") == synced("r4") == ["w1:1", "w2:1"]
    service.leave("w1")
    assert opened("r5") == synced("r1") == ["w2:1"]


def test_the_status_reads_well() -> None:
    endpoint = DispatcherEndpoint(service_of())
    assert "0 workers" in status_text(endpoint.get_status(pb.GetStatusRequest()).json)
    assert jobs_text(endpoint.list_jobs(pb.ListJobsRequest()).json) == "no jobs"
    assert datasets_text(endpoint.list_datasets(pb.ListDatasetsRequest()).json) == "no datasets"
    service = service_of()
    register(service)
    add_worker(service)
    open_reader(service)
    service.heartbeat("w1", (), WorkerReport(rows_sent=1_234, rate_rows_per_s=56.7))
    service.lease_windows(lease_request())
    request = Sync(reader_id="r1", iteration_id="i1", consumed=(RowMark(0, 0, 1, True),))
    service.sync(request, ReaderReport(rows_consumed=1, wait_share=0.25))
    endpoint = DispatcherEndpoint(service)
    assert status_text(endpoint.get_status(pb.GetStatusRequest()).json).splitlines() == [
        "1 workers, 1 jobs, 1 datasets",
        "2 clients, heartbeats every 1 s, lost after 10 s (workers) or 60 s (readers)",
        "",
        "worker  rows sent  rows/s  busy  windows  buffered",
        "w1:1        1,234      57    0%        0   0.0 MiB",
        "",
        "job    state    age  dataset  policy   epoch     progress  rows  readers  waiting  enough",
        "train  reading  0 s     1000  DYNAMIC      0  1/4 windows     1        1      25%       -",
        "",
        "reader         job    epoch  rows  waiting  missed",
        "process 0 on   train      0     1      25%       0",
    ]


def test_what_users_named_does_not_reach_the_terminal_raw() -> None:
    service = service_of()
    register(service)
    add_worker(service)
    open_reader(service, job_name="red\x1b[31m\nrow\u202e")
    endpoint = DispatcherEndpoint(service)
    status = status_text(endpoint.get_status(pb.GetStatusRequest()).json)
    listing = json.loads(endpoint.list_jobs(pb.ListJobsRequest()).json)
    listing[0]["iterations"][0]["skipped"] = Omitted.of_function(1, "line\n\x07ring").to_json()
    listed = jobs_text(json.dumps(listing))
    assert status.count("red\\x1b[31m\\nrow\\u202e  ") == 2
    assert "line\n  \\x07ring" in listed
    for text in (status, listed):
        assert all(line.isprintable() for line in text.splitlines())
