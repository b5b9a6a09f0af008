"""Time-outs and warnings of a reader that waits for missing or unreachable workers."""

from __future__ import annotations

import logging

import pytest

from dataservice.client.wait_limits import (
    MissingWorkersWait,
    NoWorkerWait,
    ReaderWaits,
    UnreachableWorkersWait,
)
from dataservice.errors import DeadlineExceededError, UnavailableError
from dataservice.wire import dispatcher_pb2 as pb


def test_missing_workers_are_warned_of_at_once_and_then_periodically(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait = MissingWorkersWait(60.0)
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, 1.0, 2.0, 10.0, 11.0):
            assert wait.check(["worker 0 of 2 at a"], now_s) is None
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "waiting for worker 0 of 2 at a",
        "waiting for worker 0 of 2 at a",
    ]


def test_patience_is_counted_for_each_missing_worker() -> None:
    wait = MissingWorkersWait(5.0)
    assert wait.check(["a"], 0.0) is None
    assert wait.check(["a", "b"], 4.9) is None
    error = wait.check(["a", "b"], 5.0)
    assert isinstance(error, DeadlineExceededError)
    assert str(error).startswith("a has been missing for 5 s")


def test_patience_restarts_when_missing_worker_returned() -> None:
    wait = MissingWorkersWait(5.0)
    assert wait.check(["a"], 0.0) is None
    assert wait.check([], 4.0) is None
    assert wait.check(["a"], 6.0) is None
    assert wait.check(["a"], 10.9) is None
    assert wait.check(["a"], 11.0) is not None


def test_reader_without_workers_warns_periodically(caplog: pytest.LogCaptureFixture) -> None:
    wait = NoWorkerWait("host:5050", 60.0)
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, 9.9):
            assert wait.check(True, now_s) is None
        assert not caplog.records
        for now_s in (10.0, 11.0, 20.0):
            assert wait.check(True, now_s) is None
    assert [record.getMessage() for record in caplog.records] == [
        "waiting: no data worker is registered with the dispatcher at host:5050; "
        "start one with `dataservice worker --dispatcher host:5050`"
    ] * 2


def test_reader_without_workers_times_out() -> None:
    wait = NoWorkerWait("host:5050", 5.0)
    assert wait.check(True, 100.0) is None
    assert wait.check(False, 104.0) is None
    assert wait.check(True, 105.0) is None
    assert wait.check(True, 109.9) is None
    error = wait.check(True, 110.0)
    assert isinstance(error, UnavailableError)
    assert "no data worker is registered with the dispatcher at host:5050" in str(error)
    assert "none came in 5 s" in str(error)


UNREACHABLE = {"b:1": "refused", "a:1": "unknown host"}


def test_unreachable_workers_are_warned_of_periodically(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait = UnreachableWorkersWait(60.0)
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, 9.9):
            assert wait.check(UNREACHABLE, 0, now_s) is None
        assert wait.check({}, 0, 9.95) is None
        for now_s in (10.0, 19.9):
            assert wait.check(UNREACHABLE, 0, now_s) is None
        assert not caplog.records
        for now_s in (20.0, 21.0, 30.0):
            assert wait.check(UNREACHABLE, 0, now_s) is None
    message = caplog.records[0].getMessage()
    assert "a:1, b:1, which cannot be reached from here (refused)" in message
    assert "--worker-address" in message
    assert len(caplog.records) == 2


def test_unreachable_workers_time_out_only_if_no_rows_came() -> None:
    wait = UnreachableWorkersWait(5.0)
    assert wait.check(UNREACHABLE, 0, 100.0) is None
    assert wait.check(UNREACHABLE, 0, 104.9) is None
    error = wait.check(UNREACHABLE, 0, 105.0)
    assert isinstance(error, UnavailableError)
    assert "timeout_s than 5 s" in str(error)
    wait = UnreachableWorkersWait(5.0)
    assert wait.check(UNREACHABLE, 3, 100.0) is None
    assert wait.check(UNREACHABLE, 3, 200.0) is None


def error_after_waiting(
    reply: pb.SyncReply,
    *,
    waits: bool = True,
    has_workers: bool = True,
    unreachable: dict[str, str] | None = None,
) -> str:
    """Returns the error of a reader to which this lasts 5 s, its time-out; "" if there is none."""
    reader = ReaderWaits("host:5050", 5.0)
    errors = [
        reader.check(
            reply,
            waits=waits,
            has_workers=has_workers,
            unreachable=unreachable or {},
            rows=0,
            now_s=now_s,
        )
        for now_s in (0.0, 5.0)
    ]
    assert errors[0] is None
    return "" if errors[1] is None else str(errors[1])


@pytest.mark.parametrize(
    ("reply", "unreachable", "named"),
    [
        (pb.SyncReply(missing_workers=["worker 0"]), {}, "worker 0 has been missing for 5 s"),
        (pb.SyncReply(awaited_readers=["reader-1"]), {}, "positions of readers reader-1 were not"),
        (pb.SyncReply(), UNREACHABLE, "cannot be reached from here"),
    ],
)
def test_reader_is_told_what_it_has_waited_for(
    reply: pb.SyncReply, unreachable: dict[str, str], named: str
) -> None:
    assert named in error_after_waiting(reply, unreachable=unreachable)


@pytest.mark.parametrize(
    ("reply", "waits", "fails"),
    [
        (pb.SyncReply(), True, True),
        (pb.SyncReply(), False, False),
        (pb.SyncReply(ended=True), True, False),
    ],
)
def test_reader_misses_workers_only_while_it_waits_for_rows_that_are_left(
    reply: pb.SyncReply, waits: bool, fails: bool
) -> None:
    error = error_after_waiting(reply, waits=waits, has_workers=False)
    assert ("no data worker is registered" in error) == fails == bool(error)


def test_reader_that_misses_workers_of_the_list_is_not_told_that_there_is_none() -> None:
    reply = pb.SyncReply(missing_workers=["worker 0"])
    assert "worker 0" in error_after_waiting(reply, has_workers=False)
