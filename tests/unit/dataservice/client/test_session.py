"""A read session: idleness, end of data, streams to workers, and reports to the dispatcher."""

from __future__ import annotations

import pytest

from dataservice.client.pacing import AGAIN_S, GROUP_S, IDLE_MAX_S, Pacing
from dataservice.client.read_spec import ReadSpec
from dataservice.client.session import SETTLE_S, ReadSession
from dataservice.client.statistics import ReadStatistics
from dataservice.client.streams import MAX_DAMAGED_STREAMS, StreamTable
from dataservice.errors import DataLossError, UnavailableError
from dataservice.stream_counts import LEAST_WORKERS
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import NO_WINDOW, FrameKind, Header, RowSpan
from tests.unit.counted_calls import calls_of

DYNAMIC = ShardingPolicy.DYNAMIC
OFF = ShardingPolicy.OFF


class Stream:
    """A worker's stream as the session sees it."""

    def __init__(self, worker_id: str, address: str) -> None:
        self.worker_id = worker_id
        self.address = address
        self.dropped = False
        self.is_heard = False

    def drop(self) -> None:
        self.dropped = True


class Reader:
    """A session that the test drives by hand, and the streams that it opened."""

    def __init__(self, policy: ShardingPolicy, *workers: str, is_shared: bool = False) -> None:
        self.opened: list[Stream] = []
        self.session = ReadSession(
            ReadSpec(
                target="dispatcher:1",
                dataset_id="1000",
                policy=policy,
                job_name="shared" if is_shared else None,
            ),
            "reader",
            "iteration",
            StreamTable(self._open),
            Pacing(1.0, 0.0),
        )
        self.join(*workers)

    def _open(self, worker_id: str, address: str) -> Stream:
        self.opened.append(Stream(worker_id, address))
        return self.opened[-1]

    def join(self, *workers: str, now_s: float = 0.0) -> None:
        self.session.begin(pb.OpenIterationReply(workers=members(*workers)), now_s)

    def frame(
        self, first: int, end: int, *, window: int = 0, final: bool = False, more: bool = False
    ) -> RowSpan:
        span = RowSpan(window, 0, first, end, final)
        header = Header(FrameKind.DATA, end - first, 0, (span,), True, more_follows=more)
        self.session.accept(self.opened[0], header)
        return span

    def use(self, span: RowSpan) -> None:
        self.session.record_taken()
        self.session.consume([span])

    def call(self, now_s: float = 0.0, **reply: object) -> pb.SyncRequest:
        call = self.session.prepare_call(ReadStatistics())
        self.session.apply_reply(call, pb.SyncReply(**reply), now_s)
        return call.request


def members(*workers: str) -> list[pb.WorkerInfo]:
    return [pb.WorkerInfo(worker_id=worker, address=f"{worker}:1") for worker in workers]


def test_session_is_waited_on_only_while_taker_finds_no_element() -> None:
    reader = Reader(DYNAMIC)
    assert not reader.session.is_waited_on()
    reader.session.begin_wait()
    assert reader.session.is_waited_on()
    reader.join("a")
    reader.use(reader.frame(0, 4))
    reader.frame(4, 8)
    assert not reader.session.is_waited_on(), "an element is there"
    reader.session.end_wait()
    reader.session.record_taken()
    assert not reader.session.is_waited_on()


def test_broken_workers_are_out_of_reach_until_heard() -> None:
    for policy in (DYNAMIC, OFF):
        reader = Reader(policy, "a", "b")
        assert reader.session.out_of_reach() == {}, "nobody has tried"
        for stream in tuple(reader.opened):
            reader.session.record_broken(stream, UnavailableError(f"no {stream.address}"), 0.0)
        assert reader.session.out_of_reach() == {"a:1": "no a:1", "b:1": "no b:1"}
        reader.call(workers=members("a", "b"), now_s=5.0)
        assert len(reader.opened) == 4, "the streams were opened anew"
        assert reader.session.out_of_reach() == {"a:1": "no a:1", "b:1": "no b:1"}
        reader.opened[2].is_heard = True
        others = {} if policy is DYNAMIC else {"b:1": "no b:1"}
        assert reader.session.out_of_reach() == others, "windows go to a worker that is heard"


def test_session_is_idle_only_while_awaited_with_no_rows_due() -> None:
    reader = Reader(DYNAMIC, "a")
    assert not reader.session.is_idle()
    reader.session.begin_wait()
    assert reader.session.is_idle()
    span = reader.frame(0, 4)
    assert not reader.session.is_idle()
    reader.use(span)
    assert not reader.session.is_idle(), "the window has more rows"
    reader.use(reader.frame(4, 6, final=True))
    assert reader.session.is_idle()
    reader.session.end_wait()
    assert not reader.session.is_idle()


def test_session_is_not_idle_while_worker_announced_more_rows() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    reader.use(reader.frame(0, 4, final=True, more=True))
    assert not reader.session.is_idle()
    reader.use(reader.frame(0, 4, window=1, final=True))
    assert reader.session.is_idle()


@pytest.mark.parametrize("how", ["ended", "broken", "lost"])
def test_announced_rows_are_forgotten_when_their_stream_ends(how: str) -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    reader.use(reader.frame(0, 4, final=True, more=True))
    if how == "ended":
        reader.session.record_end(reader.opened[0])
    elif how == "broken":
        reader.session.record_broken(reader.opened[0], UnavailableError("gone"), 0.0)
    else:
        reader.join("b")
    assert reader.session.is_idle()


def test_end_is_taken_once_per_reply() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    reader.call(ended=True, workers=members("a"))
    assert reader.session.take_end()
    assert not reader.session.take_end()


def test_reader_waiting_again_after_end_calls_soon_however_often() -> None:
    reader, now_s = Reader(DYNAMIC, "a"), 0.0
    for _ in range(20):
        reader.session.begin_wait()
        now_s += reader.session.time_to_call(now_s)
        reader.call(ended=True, workers=members("a"), now_s=now_s)
        assert reader.session.take_end()
        reader.session.end_wait()
    reader.session.begin_wait()
    assert reader.session.time_to_call(now_s) <= AGAIN_S + 1e-9


def paused_s(reader: Reader, **reply: object) -> float:
    """Returns the pause of an idle reader after a call with this reply, and some more like it."""
    for _ in range(12):
        reader.call(is_leased=True, workers=members("a"), now_s=5.0, **reply)
    return reader.session.time_to_call(5.0)


def test_reader_with_leased_windows_calls_once_a_second_while_it_waits() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    assert reader.session.time_to_call(5.0) <= 0, "it may have rows to give back"
    assert paused_s(reader) == 1.0
    reader.call(workers=members("a"), now_s=5.0)
    assert reader.session.time_to_call(5.0) <= IDLE_MAX_S, "the end may come, or windows"


def test_reader_calls_soon_when_the_rows_of_its_leased_windows_have_come() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    assert paused_s(reader) == 1.0
    reader.use(reader.frame(0, 4, final=True))
    assert reader.session.time_to_call(5.5) <= 0


@pytest.mark.parametrize("comes", ["rows", "end"])
def test_reply_that_was_overtaken_does_not_say_that_windows_are_leased(comes: str) -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    call = reader.session.prepare_call(ReadStatistics())
    if comes == "rows":
        reader.frame(0, 4, final=True)
        reader.session.record_taken()  # and not consumed yet, so there is nothing to report
    else:
        reader.session.record_end(reader.opened[0])
    reader.session.apply_reply(call, pb.SyncReply(is_leased=True, workers=members("a")), 5.0)
    assert reader.session.is_idle()
    assert reader.session.time_to_call(5.0) < 0.02


def test_reader_calls_soon_until_a_broken_stream_is_open_again() -> None:
    reader = Reader(DYNAMIC, "a", "b")
    reader.session.begin_wait()
    reader.call(is_leased=True, workers=members("a", "b"), now_s=5.0)
    reader.session.record_broken(reader.opened[0], UnavailableError("gone"), 5.0)
    for now_s in (5.0, 5.05, 5.1, 5.15):
        reader.call(is_leased=True, workers=members("a", "b"), now_s=now_s)
        assert reader.session.time_to_call(now_s) <= IDLE_MAX_S
    assert len(reader.opened) == 2
    reader.call(is_leased=True, workers=members("a", "b"), now_s=5.3)
    assert len(reader.opened) == 3
    assert reader.session.time_to_call(5.3) == pytest.approx(1.0)


def test_reader_calls_soon_until_it_knows_how_many_workers_it_reads_from() -> None:
    reader = Reader(DYNAMIC, is_shared=True)
    many = members(*(f"w{number}" for number in range(40)))
    reader.session.begin(pb.OpenIterationReply(workers=many, readers=1), 0.0)
    reader.session.begin_wait()
    for now_s, pause_s in ((SETTLE_S / 2, IDLE_MAX_S), (SETTLE_S, 1.0)):
        reader.call(is_leased=True, workers=many, readers=1, now_s=now_s)
        assert reader.session.time_to_call(now_s) <= pause_s
    assert len(reader.opened) == 40
    assert reader.session.time_to_call(SETTLE_S) == 1.0


def test_rows_consumed_have_to_be_reported_before_the_next_heartbeat() -> None:
    for policy in (DYNAMIC, OFF):
        reader = Reader(policy, "a")
        reader.call(workers=members("a"), now_s=5.0)
        assert not reader.session.must_report_before(6.0), "there is nothing to report"
        reader.use(reader.frame(0, 4, window=0 if policy is DYNAMIC else NO_WINDOW))
        assert reader.session.must_report_before(6.0) is (policy is DYNAMIC)
        assert not reader.session.must_report_before(5.0 + GROUP_S)


def test_end_is_ignored_while_nobody_waits() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.call(ended=True, workers=members("a"))
    assert not reader.session.take_end()


def test_rows_received_after_end_revoke_it() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.begin_wait()
    reader.call(ended=True, workers=members("a"))
    span = reader.frame(0, 4, final=True)
    assert not reader.session.take_end()
    reader.use(span)
    assert not reader.session.take_end()


def test_finished_iteration_stays_at_end() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.call(iteration_finished=True, workers=members("a"))
    assert reader.session.take_end()
    assert reader.session.take_end()


def test_iteration_without_windows_ends_once_its_last_element_is_taken() -> None:
    reader = Reader(OFF, "a", "b")
    reader.session.begin_wait()
    reader.call(ended=True, iteration_finished=True, workers=members("a", "b"))
    assert not reader.session.take_end()
    reader.session.record_end(reader.opened[0])
    reader.frame(0, 4, window=NO_WINDOW)
    reader.session.record_end(reader.opened[1])
    reader.call(ended=True, iteration_finished=True, workers=members("a", "b"))
    assert not reader.session.take_end()
    reader.session.record_taken()
    reader.call(ended=True, iteration_finished=True, workers=members("a", "b"))
    assert reader.session.take_end()


def test_consumed_rows_are_reported_in_one_call_only() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.use(reader.frame(0, 4))
    assert [(m.window, m.row, m.final) for m in reader.call(workers=members("a")).consumed] == [
        (0, 4, False)
    ]
    assert not reader.call(workers=members("a")).consumed


def test_broken_stream_is_reported_at_once_with_rows_it_had_sent() -> None:
    reader = Reader(DYNAMIC, "a", "b")
    reader.frame(0, 4)
    reader.session.record_broken(reader.opened[0], UnavailableError("gone"), 5.0)
    assert reader.session.time_to_call(5.0) <= 0
    request = reader.call(5.0, workers=members("a", "b"))
    assert list(request.broken_worker_ids) == ["a"]
    assert [(m.window, m.generation, m.row) for m in request.released] == [(0, 0, 4)]
    assert not reader.call(5.0, workers=members("a", "b")).broken_worker_ids


def test_broken_stream_is_reopened_only_once_reported_and_after_pause() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.session.record_broken(reader.opened[0], UnavailableError("gone"), 5.0)
    reader.join("a", now_s=60.0)
    assert len(reader.opened) == 1
    reader.call(5.01, workers=members("a"))
    assert len(reader.opened) == 1
    reader.call(5.5, workers=members("a"))
    assert [stream.worker_id for stream in reader.opened] == ["a", "a"]


def test_stream_of_lost_worker_is_dropped() -> None:
    reader = Reader(DYNAMIC, "a", "b")
    reader.call(workers=members("b"))
    assert [stream.dropped for stream in reader.opened] == [True, False]


def test_fences_are_answered_in_next_call() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.frame(0, 4)
    fences = [pb.Mark(window=0, generation=0, row=0), pb.Mark(window=7, generation=2, row=30)]
    reader.call(1.0, fences=fences, workers=members("a"))
    assert reader.session.time_to_call(1.0) <= 0
    released = {(m.window, m.generation, m.row) for m in reader.call(1.0).released}
    assert released == {(0, 0, 4), (7, 2, 30)}


def test_window_received_whole_is_released_before_it_is_consumed() -> None:
    reader = Reader(DYNAMIC, "a")
    reader.frame(0, 4, final=True)
    reader.session.record_taken()
    reader.session.begin_wait()
    request = reader.call(workers=members("a"))
    assert [(m.window, m.row, m.final) for m in request.released] == [(0, 4, True)]


@pytest.mark.parametrize("error", [DataLossError("bits"), UnavailableError("gone")])
def test_stream_is_given_up_after_repeated_damage_but_not_unavailability(error: Exception) -> None:
    reader = Reader(DYNAMIC, "a")
    retried = [
        reader.session.record_broken(reader.opened[0], error, 0.0)
        for _ in range(MAX_DAMAGED_STREAMS + 1)
    ]
    assert all(retried[:-1])
    assert retried[-1] is not isinstance(error, DataLossError)


def test_member_changes_are_applied_to_known_workers() -> None:
    reader = Reader(DYNAMIC)
    reader.call(workers=members("a", "b"), members_version=3)
    request = reader.call(
        workers=members("c"),
        lost_worker_ids=["a", "never-met"],
        members_version=5,
        members_differ=True,
    )
    assert request.members_known == 3
    assert reader.session.workers.addresses == {"b": "b:1", "c": "c:1"}
    assert [stream.worker_id for stream in reader.opened] == ["a", "b", "c"]
    request = reader.call(members_version=5, members_differ=True)
    assert request.members_known == 5
    assert list(reader.session.workers.addresses) == ["b", "c"]


def test_worker_set_without_version_is_requested_in_full_again() -> None:
    reader = Reader(DYNAMIC)
    reader.call(workers=members("a"), members_version=3)
    reader.call(workers=members("b"))
    assert list(reader.session.workers.addresses) == ["b"]
    assert reader.call().members_known == 0


def test_one_of_many_readers_opens_streams_to_some_workers() -> None:
    reader = Reader(DYNAMIC)
    many = members(*(f"w{number}" for number in range(40)))
    reader.session.begin(pb.OpenIterationReply(workers=many, readers=40), 0.0)
    assert len(reader.opened) == LEAST_WORKERS
    first = reader.opened[0]
    reader.call(workers=many, readers=40)
    assert len(reader.opened) == LEAST_WORKERS
    reader.session.record_broken(first, UnavailableError("broken"), 0.0)
    reader.call(workers=many, readers=40)
    assert len(reader.opened) == LEAST_WORKERS + 1, "another for the one that cannot be heard"
    reader.call(workers=many, readers=4)
    assert len(reader.opened) == 40, "few readers need all workers"
    assert not any(stream.dropped for stream in reader.opened)


def test_reader_of_shared_job_begins_with_few_workers() -> None:
    many = members(*(f"w{number}" for number in range(40)))
    alone, shared = Reader(DYNAMIC), Reader(DYNAMIC, is_shared=True)
    for reader in (alone, shared):
        reader.session.begin(pb.OpenIterationReply(workers=many, readers=1), 0.0)
    assert len(alone.opened) == 40
    assert len(shared.opened) == LEAST_WORKERS
    shared.call(now_s=SETTLE_S / 2, workers=many, readers=1)
    assert len(shared.opened) == LEAST_WORKERS
    shared.call(now_s=SETTLE_S, workers=many, readers=1)
    assert len(shared.opened) == 40, "nobody has come"


def test_readers_joining_one_by_one_each_keep_few_workers() -> None:
    many = members(*(f"w{number}" for number in range(40)))
    readers = [Reader(DYNAMIC, is_shared=True) for _ in range(20)]
    for number, reader in enumerate(readers, 1):
        joined = pb.OpenIterationReply(workers=many, readers=number)
        reader.session.begin(joined, number * SETTLE_S / 20)
    for reader in readers:
        reader.call(now_s=2 * SETTLE_S, workers=many, readers=20)
    assert {len(reader.opened) for reader in readers} == {LEAST_WORKERS}


def test_one_of_many_readers_opens_streams_to_some_added_workers() -> None:
    before, after = members(*(f"w{n}" for n in range(8))), members(*(f"w{n}" for n in range(40)))
    reader = Reader(DYNAMIC)
    reader.session.begin(pb.OpenIterationReply(workers=before, readers=40), 0.0)
    reader.call(workers=after, readers=40)
    assert 8 < len(reader.opened) <= 16
    assert not any(stream.dropped for stream in reader.opened)


def test_reader_without_windows_opens_streams_to_all_workers() -> None:
    reader = Reader(OFF)
    many = members(*(f"w{number}" for number in range(40)))
    reader.session.begin(pb.OpenIterationReply(workers=many, readers=40), 0.0)
    assert len(reader.opened) == 40


def test_streams_that_are_well_are_not_walked_through() -> None:
    streams = StreamTable(Stream)
    workers = {f"w{number}": f"w{number}:1" for number in range(1_000)}
    streams.update(workers, 0.0)
    assert calls_of(lambda: streams.update(workers, 1.0)) < 10
    assert calls_of(streams.unreported) < 10
    assert streams.open_of(["w7", "none"]).keys() == {"w7"}
    lost = streams.all()[500]
    streams.record_broken(lost, UnavailableError("gone"), 1.0)
    assert calls_of(streams.unreported) < 10
    assert not streams.open_of([lost.worker_id])
    for slot in streams.unreported():
        slot.is_reported = True
    streams.update(workers, 9.0)
    assert streams.all()[500] is not lost
    assert not streams.unreported()
    assert calls_of(lambda: streams.update(workers, 9.1)) > 1_000
    streams.record_frame(streams.all()[500])
    assert calls_of(lambda: streams.update(workers, 9.2)) < 10
    streams.record_broken(streams.all()[500], UnavailableError("gone again"), 9.3)
    workers.pop(lost.worker_id)
    streams.update(workers, 10.0)
    assert len(streams.all()) == 999
    assert streams.count_failing() == 0
