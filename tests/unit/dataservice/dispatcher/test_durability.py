"""All that the service has replied is durable, and a journal restores it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataservice.dispatcher.commit import GroupCommit
from dataservice.dispatcher.journal_frames import decode_frame
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import Sync
from dataservice.dispatcher.service import DispatcherService
from dataservice.errors import (
    DataLossError,
    DataServiceError,
    ResourceExhaustedError,
    UnavailableError,
)
from dataservice.ranges import RowMark
from dataservice.runtime.brief_lock import BriefLock
from tests.unit.dataservice.dispatcher.dispatcher_services import (
    WAIT_S,
    ListJournal,
    add_worker,
    eventually,
    lease_request,
    open_reader,
    read_service,
    register,
    service_of,
    sync,
)
from tests.unit.manual_clock import ManualClock


def test_reply_waits_until_its_events_are_durable() -> None:
    journal = ListJournal()
    journal.hold()
    service = service_of(journal)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        assert not answer.done()
        assert journal.frames == []
        journal.may_write.set()
        assert answer.result(WAIT_S) == "1000"
    assert len(journal.frames) == 1


def test_read_waits_until_events_it_saw_are_durable() -> None:
    journal = ListJournal()
    journal.hold()
    service = service_of(journal)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        seen = pool.submit(service.get_dataset, "1000")
        with pytest.raises(TimeoutError):
            seen.result(0.05)
        journal.may_write.set()
        assert seen.result(WAIT_S).dataset_id == "1000"


def send_heartbeat(service: DispatcherService) -> tuple[object, ...]:
    return service.heartbeat("w1", ["i1"], WorkerReport()).ended


def test_request_without_news_does_not_wait_for_events_of_others() -> None:
    journal = ListJournal()
    service = read_service(journal)
    service.lease_windows(lease_request())
    sync(service, consumed=(RowMark(0, 0, 1, False),))
    idle = Sync(reader_id="r1", iteration_id="i1")
    version = service.sync(idle, ReaderReport())[1].version
    journal.hold()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        assert pool.submit(send_heartbeat, service).result(WAIT_S) == ()
        pool.submit(service.sync, idle, ReaderReport(), version).result(WAIT_S)
        # A repeated mark is no news, but may not be durable yet: the reply has to wait.
        again = Sync(reader_id="r1", iteration_id="i1", consumed=(RowMark(0, 0, 1, False),))
        confirmed = pool.submit(service.sync, again, ReaderReport(), version)
        with pytest.raises(TimeoutError):
            confirmed.result(0.05)
        journal.may_write.set()
        confirmed.result(WAIT_S)


def test_wait_durable_returns_after_write_of_its_own_frame() -> None:
    journal = ListJournal()
    journal.hold()
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


def test_concurrent_commits_are_durable_despite_journal_replacement() -> None:
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
    assert not commits._waiters


def test_brief_lock_is_mutually_exclusive() -> None:
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


def test_frames_enqueued_during_replacement_follow_the_image() -> None:
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


def test_journal_replacement_precedes_waiting_writes() -> None:
    journal = ListJournal()
    journal.hold()
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


def test_decisions_made_during_write_share_next_write() -> None:
    journal = ListJournal()
    journal.hold()
    service = service_of(journal)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(register, service)
        assert journal.writing.wait(WAIT_S)
        others = [pool.submit(register, service) for _ in range(5)]
        eventually(lambda: service._store._commits.ticket() == 6)  # type: ignore[union-attr]
        journal.may_write.set()
        ids = {future.result(WAIT_S) for future in (first, *others)}
    assert ids == {str(number) for number in range(1000, 1006)}
    assert journal.writes == [1, 5]


def test_events_of_one_decision_are_one_frame() -> None:
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


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [(ResourceExhaustedError("no room"), "there is room"), (DataLossError("damaged"), "restarted")],
)
def test_journal_failure_stops_all_replies(failure: DataServiceError, remedy: str) -> None:
    journal = ListJournal()
    service = service_of(journal)
    register(service)
    journal.failure = failure
    with pytest.raises(UnavailableError, match=f"{failure}.*{remedy}"):
        register(service)
    journal.failure = None
    with pytest.raises(UnavailableError, match="cannot write its journal"):
        service.get_dataset("1000")
    assert len(journal.frames) == 1


def test_dispatcher_with_full_disk_resumes_once_there_is_room() -> None:
    journal, clock = ListJournal(), ManualClock()
    service = service_of(journal, clock, worker_timeout_s=10.0)
    register(service)
    add_worker(service)
    journal.failure = ResourceExhaustedError("no room on the disk")
    with pytest.raises(UnavailableError, match="no room"):
        open_reader(service)
    for _ in range(30):
        clock.advance(1.0)
        with pytest.raises(UnavailableError, match="no room"):
            service.tick()
    journal.failure = None
    service.tick()
    assert len(service.overview.status()["workers"]) == 1, "that time counts against nobody"
    assert open_reader(service) == "i1"
    assert service.lease_windows(lease_request()).leases
    assert service_of(ListJournal(journal.frames))._state == service._state


def test_damaged_journal_is_not_retried() -> None:
    journal = ListJournal()
    service = service_of(journal)
    journal.failure = DataLossError("damaged")
    with pytest.raises(UnavailableError):
        register(service)
    journal.failure = None
    with pytest.raises(UnavailableError, match="restarted"):
        service.tick()
    assert not journal.frames


def test_journal_without_room_for_replacement_is_appended_to() -> None:
    class FullJournal(ListJournal):
        def replace(self, frames: Sequence[bytes]) -> None:
            raise ResourceExhaustedError(f"no room for {len(frames)} frames")

    journal = FullJournal([b"old"])
    commits = GroupCommit(journal)
    commits.enqueue(b"1")
    commits.begin_replacing()
    commits.enqueue(b"2")
    commits.replace([b"image"])
    commits.enqueue(b"3")
    commits.wait_durable(3)
    assert journal.frames == [b"old", b"1", b"2", b"3"]


def test_restarted_dispatcher_resumes_at_end_of_journal() -> None:
    journal = ListJournal()
    before = read_service(journal)
    before.lease_windows(lease_request(count=2))
    sync(before, consumed=(RowMark(0, 0, 1, True),))
    after = service_of(ListJournal(journal.frames))
    assert after.overview.status() == before.overview.status()
    assert after.lease_windows(lease_request()).leases[0].window_index == 2


def test_long_journal_is_compacted_to_current_state() -> None:
    journal = ListJournal()
    service = read_service(journal)
    service._store._shorten_at = 30
    service.lease_windows(lease_request())
    for row in range(60):
        sync(service, consumed=(RowMark(0, 0, row, False),))
        service.tick()
    assert len(journal.frames) < 60
    restored = service_of(ListJournal(journal.frames))
    assert restored._state == service._state
    assert service._store._shorten_at > 30, "the next time is far enough away to be worth it"


def test_decisions_proceed_while_journal_is_replaced() -> None:
    class SlowJournal(ListJournal):
        def replace(self, frames: Sequence[bytes]) -> None:
            self.writing.set()
            assert self.may_write.wait(WAIT_S)
            super().replace(frames)

    journal = SlowJournal()
    service = read_service(journal)
    service._store._shorten_at = 0
    journal.hold()
    with ThreadPoolExecutor(2) as pool:
        ticking = pool.submit(service.tick)
        assert journal.writing.wait(WAIT_S)
        # A mere heartbeat does not even wait for the disk.
        assert send_heartbeat(service) == ()
        leasing = pool.submit(service.lease_windows, lease_request())
        eventually(lambda: service._store._commits.ticket() == 4)  # type: ignore[union-attr]
        assert not leasing.done()
        journal.may_write.set()
        ticking.result(WAIT_S)
        assert leasing.result(WAIT_S).leases
    assert service_of(ListJournal(journal.frames))._state == service._state


def test_dispatcher_without_journal_writes_nothing() -> None:
    service = service_of()
    register(service)
    assert service._store._commits is None


def test_clients_count_as_just_seen_after_restart() -> None:
    journal = ListJournal()
    read_service(journal)
    clock = ManualClock(1_000_000.0)
    after = service_of(ListJournal(journal.frames), clock, worker_timeout_s=10.0)
    after.tick()
    assert len(after.overview.status()["workers"]) == 1
    sync(after)
    for _ in range(10):
        clock.advance(1.0)
        after.tick()
    assert after.overview.status()["workers"] == []
