"""Quarantine of windows that kill workers: accusation, suspicion, acquittal, giving them up."""

from __future__ import annotations

from dataclasses import replace

from dataservice.dispatcher import decide, quarantine
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.invariants import check_invariants, check_windows
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.leasing import answer_sync, give_back, lease_windows, sync
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    LeaseWindows,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.suspicion import MAX_DEATHS, describe_window
from dataservice.dispatcher.windows import WindowTable
from dataservice.ranges import RowMark
from dataservice.sharding import Split, Window
from dataservice.vocabulary import ALL_WINDOWS, ShardingPolicy
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted

ROWS = 10


class Cluster:
    """A state; every decision is journaled, checked and compacted on the way."""

    def __init__(self, windows: int, readers: tuple[str, ...] = ("r1",)) -> None:
        self.state = DispatcherState()
        self.sequence = 0
        self.workers = 0
        splits = tuple(
            Split(path=f"{i}.parquet", row_groups=(i,), stop=ROWS, rows=ROWS)
            for i in range(windows)
        )
        plan = WindowPlan(splits=splits, target_rows=ROWS)
        begun: tuple[ev.Event, ...] = (
            ev.DatasetRegistered(
                dataset_id="d", plan=b"p", schema=b"s", cardinality=-2, compression="AUTO"
            ),
            ev.JobCreated(
                job_id="j",
                name="train",
                dataset_id="d",
                policy=ShardingPolicy.DYNAMIC,
                delivery="exactly_once",
            ),
            ev.IterationCreated(iteration_id="i", job_id="j", repetition=0),
            ev.WindowsPlanned(iteration_id="i", plan=plan),
            ev.RoundOpened(iteration_id="i"),
            *(ev.ReaderJoined(reader_id=r, iteration_id="i", host="h", pid=1) for r in readers),
        )
        self.commit(Decision(begun))

    def commit(self, decision: Decision) -> Decision:
        for event in decision.events:
            (decoded,) = decode_frame(encode_frame([event]))
            self.state.apply(decoded)
            check_invariants(self.state)
        short = compacted(self.state)
        assert short == self.state, "compaction keeps suspicions"
        assert short.accused <= self.state.accused
        return decision

    @property
    def table(self) -> WindowTable:
        table = self.state.iterations["i"].windows
        assert table is not None
        return table

    def add_worker(self, address: str | None = None, formerly: str | None = None) -> str:
        self.workers += 1
        worker = f"w{self.workers}"
        request = RegisterWorker(
            worker_id=worker, address=address or f"{worker}:1", formerly=formerly
        )
        self.commit(decide.register_worker(self.state, request))
        return worker

    def lease(self, worker: str, count: int = 9, reader: str = "r1") -> list[int]:
        self.sequence += 1
        request = LeaseWindows(
            worker_id=worker,
            iteration_id="i",
            reader_id=reader,
            count=count,
            sequence=self.sequence,
        )
        answer = self.commit(lease_windows(self.state, request)).reply
        return [lease.window_index for lease in answer.leases]  # type: ignore[attr-defined]

    def report_broken(self, worker: str, reader: str = "r1") -> None:
        """Reports a worker's broken stream, and releases the windows that its reader had there."""
        had = tuple(self.table.leased_to(worker, reader))
        released = tuple(
            RowMark(window, self.table.records[window].generation, 0, False) for window in had
        )
        request = Sync(
            reader_id=reader, iteration_id="i", released=released, broken_worker_ids=(worker,)
        )
        self.commit(sync(self.state, request))

    def lose(self, worker: str, *, left: bool = False) -> None:
        self.commit(decide.lose_worker(self.state, worker, left=left))

    def die(self, worker: str) -> None:
        self.report_broken(worker)
        self.lose(worker)

    def finish(self, *windows: int) -> None:
        marks = tuple(
            RowMark(window, self.table.records[window].generation, ROWS, True) for window in windows
        )
        self.commit(sync(self.state, Sync(reader_id="r1", iteration_id="i", consumed=marks)))


def test_window_is_quarantined_after_three_deaths_and_others_continue() -> None:
    cluster = Cluster(6)
    for _ in range(2):
        worker = cluster.add_worker()
        assert cluster.lease(worker, 3) == [0, 1, 2]
        cluster.die(worker)
    worker = cluster.add_worker()
    assert cluster.lease(worker, 0) == []
    assert cluster.lease(worker, 3) == [0], "a suspect runs alone"
    assert cluster.lease(worker) == [], "and nothing joins it"
    cluster.finish(0)
    assert cluster.lease(worker) == [1]
    cluster.die(worker)
    assert [entry.what for entry in cluster.table.quarantined] == [
        "'1.parquet' row group 1 rows 0..9"
    ]
    worker = cluster.add_worker()
    assert cluster.lease(worker) == [2], "it is still a suspect"
    cluster.finish(2)
    while leased := cluster.lease(worker):
        cluster.finish(*leased)
    assert cluster.state.iterations["i"].finished
    answer = answer_sync(cluster.state, Sync(reader_id="r1", iteration_id="i"))
    assert answer.iteration_finished
    assert [entry.window for entry in answer.quarantined] == [1]


def test_a_window_of_parts_of_texts_is_described_by_their_bytes() -> None:
    part = Split(path="a.csv", size_bytes=100, start=10, stop=20)
    window = Window(index=0, splits=(part, Split(path="b.csv", size_bytes=5)), rows=None)
    assert describe_window(0, window, 0).what == "'a.csv' lines that begin in bytes 10..19, 'b.csv'"


def test_suspected_window_is_leased_only_to_idle_worker() -> None:
    cluster = Cluster(3)
    for _ in range(2):
        worker = cluster.add_worker()
        assert cluster.lease(worker, 1) == [0]
        cluster.die(worker)
    first, second = cluster.add_worker(), cluster.add_worker()
    assert cluster.lease(first) == [0]
    assert cluster.lease(second) == [1]
    cluster.report_broken(first)
    cluster.commit(quarantine.acquit(cluster.state, first))
    assert cluster.lease(second) == [], "it runs another window"
    cluster.finish(1)
    assert cluster.lease(second) == [0]


def test_worker_that_leaves_or_is_heard_again_does_not_count_as_killed() -> None:
    cluster = Cluster(1)
    for _ in range(5):
        worker = cluster.add_worker()
        assert cluster.lease(worker) == [0]
        cluster.report_broken(worker)
        cluster.lose(worker, left=True)
    worker = cluster.add_worker()
    for _ in range(5):
        assert cluster.lease(worker) == [0]
        cluster.report_broken(worker)
        assert cluster.lease(worker) == [], "its request waits, but does it live?"
        cluster.commit(quarantine.acquit(cluster.state, worker))
    assert not cluster.table.suspicions.cases
    assert not cluster.table.quarantined


def test_silent_worker_that_returns_does_not_count_as_killed() -> None:
    cluster = Cluster(2)
    worker = cluster.add_worker("a:1")
    for _ in range(2 * MAX_DEATHS):
        assert cluster.lease(worker, 1) == [0]
        cluster.die(worker)
        assert cluster.table.suspicions.cases[0].weight == 1
        worker = cluster.add_worker("a:1", formerly=worker)
        assert not cluster.table.suspicions.cases
    assert not cluster.table.quarantined


def test_worker_registered_again_before_its_loss_does_not_count_as_killed() -> None:
    cluster = Cluster(1)
    worker = cluster.add_worker("a:1")
    assert cluster.lease(worker) == [0]
    cluster.report_broken(worker)
    assert cluster.table.suspicions.accused_of(worker) == [0]
    again = RegisterWorker(worker_id="again", address="a:1", formerly=worker)
    for event in decide.register_worker(cluster.state, again).events:
        cluster.state.apply(event)
        check_windows(cluster.table)
    assert set(cluster.state.workers) == {"again"}
    assert not cluster.table.suspicions.cases


def test_returning_worker_clears_only_its_own_death() -> None:
    cluster = Cluster(1)
    killed, silent = cluster.add_worker(), cluster.add_worker("a:1")
    assert cluster.lease(killed) == [0]
    cluster.die(killed)
    assert cluster.lease(silent) == [0]
    cluster.die(silent)
    cluster.add_worker("a:1", formerly=silent)
    assert set(cluster.table.suspicions.cases[0].deaths) == {killed}


def test_heartbeat_in_flight_when_stream_broke_does_not_acquit_worker() -> None:
    cluster = Cluster(1)
    worker = cluster.add_worker()
    evidence = quarantine.Evidence()

    def hear(number: int) -> bool:
        return bool(cluster.commit(evidence.on_heartbeat(cluster.state, worker, number)).events)

    for first in (1, 4):
        assert cluster.lease(worker) == [0]
        assert not hear(first)
        cluster.report_broken(worker)
        evidence.on_accusation(worker)
        heard = [hear(first + 1), hear(first + 1), hear(first + 2), hear(first + 2)]
        assert heard == [False, False, True, False], "only what follows on an answer since then"
    cluster.lease(worker)
    cluster.report_broken(worker)
    evidence = quarantine.Evidence()
    heard = [hear(9), hear(9), hear(10)]
    assert heard == [False, False, True], "a dispatcher that starts again knows no numbers"


def test_first_heartbeat_after_each_accusation_proves_nothing() -> None:
    cluster = Cluster(1)
    worker = cluster.add_worker()
    evidence = quarantine.Evidence()
    for number in (1, 3):
        assert cluster.lease(worker) == [0]
        cluster.report_broken(worker)
        evidence.on_accusation(worker)
        assert not evidence.on_heartbeat(cluster.state, worker, number).events
        cluster.commit(quarantine.acquit(cluster.state, worker))  # by a new stream
        assert not evidence.on_heartbeat(cluster.state, worker, number + 1).events


def test_new_stream_acquits_its_worker() -> None:
    cluster = Cluster(1)
    worker = cluster.add_worker()
    assert cluster.lease(worker) == [0]
    cluster.report_broken(worker)
    begins = LeaseWindows(
        worker_id=worker,
        iteration_id="i",
        reader_id="r1",
        count=0,
        sequence=5,
        returned=(RowMark(ALL_WINDOWS, 0, 0, False),),
    )
    cluster.commit(give_back(cluster.state, replace(begins, sequence=1)))
    assert worker in cluster.state.accused, "a copy of what began the stream that broke"
    cluster.commit(give_back(cluster.state, begins))
    assert worker not in cluster.state.accused
    assert not cluster.table.suspicions.cases


def test_window_of_three_broken_streams_is_not_leased_to_fourth_worker() -> None:
    cluster = Cluster(2)
    workers = [cluster.add_worker() for _ in range(4)]
    for worker in workers[:3]:
        assert cluster.lease(worker, 1) == [0]
        cluster.report_broken(worker)
    assert cluster.lease(workers[3]) == [1], "the other one, while nobody knows"
    for worker in workers[:3]:
        cluster.lose(worker)
    assert [entry.window for entry in cluster.table.quarantined] == [0]
    cluster.finish(1)
    assert cluster.state.iterations["i"].finished


def test_window_never_leased_alone_is_quarantined_within_six_deaths() -> None:
    cluster = Cluster(2, ("r1", "r2"))
    deaths = 0
    while not cluster.table.quarantined:
        worker = cluster.add_worker()
        other = cluster.lease(worker, 1, "r2")
        cluster.lease(worker, 1, "r1")
        cluster.report_broken(worker)
        cluster.report_broken(worker, "r2")
        cluster.lose(worker)
        deaths += 1
        assert deaths <= 6, (other, cluster.table)
    assert deaths >= 3


def test_worker_unreachable_for_one_reader_still_serves_others() -> None:
    cluster = Cluster(2, ("r1", "r2"))
    worker = cluster.add_worker()
    for _ in range(3):
        cluster.report_broken(worker, "r2")
    assert worker not in cluster.state.accused
    assert cluster.lease(worker) == [0]
