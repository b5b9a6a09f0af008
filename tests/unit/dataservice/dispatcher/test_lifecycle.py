"""Ends of repetitions and jobs: history, readers refused or given a notice, and collection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher import decide, leasing, lifecycle, opening
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.compaction import facts_of
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.jobs import ENDINGS_KEPT, JobHistory
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    LeaseWindows,
    OpenAnswer,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import FailedPreconditionError
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import ANY_DIVISION, ShardingPolicy
from tests.unit.dataservice.dispatcher.dispatcher_facts import OPEN, compacted

PLAN = WindowPlan(splits=(Split(start=0, stop=1, rows=1),), target_rows=1)
TWO_WINDOWS = WindowPlan(splits=(Split(start=0, stop=1, rows=1),) * 2, target_rows=1)


class Cluster:
    """A state with one worker and a time of day; `thorough` checks it after every event."""

    def __init__(self, *, thorough: bool = True) -> None:
        self.thorough = thorough
        self.state = DispatcherState()
        self.now_s = 1_000.0
        dataset = RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="AUTO")
        self.commit(decide.register_dataset(self.state, dataset))
        self.commit(
            decide.register_worker(self.state, RegisterWorker(worker_id="w1", address="a:1"))
        )

    def commit(self, decision: Decision) -> object:
        for event in decision.events:
            self.state.apply(event)
            if self.thorough:
                assert decode_frame(encode_frame([event])) == (event,)
                check_invariants(self.state)
        return decision.reply

    def open(
        self,
        reader: str,
        repetition: int = 0,
        *,
        pid: int = 1,
        host: str = "host",
        started_s: float = 0.0,
        made_s: float | None = None,
        policy: ShardingPolicy = ShardingPolicy.DYNAMIC,
        name: str | None = "train",
        plan: WindowPlan = PLAN,
        position: SavedPosition | None = None,
        delivery: str = "exactly_once",
        restores: bool = False,
        silent: frozenset[str] = frozenset(),
    ) -> OpenAnswer:
        request = OpenIteration(
            dataset_id="1000",
            policy=policy,
            job_name=name,
            repetition=repetition,
            delivery=delivery,
            position=position,
            reader_id=reader,
            job_id=f"job-{reader}",
            iteration_id=f"iteration-{reader}",
            reader_host=host,
            reader_pid=pid,
            opened_s=self.now_s,
            program_age_s=self.now_s - started_s,
            dataset_age_s=0.0 if made_s is None else self.now_s - made_s,
            restores=restores,
            silent=silent,
        )
        dynamic = policy is ShardingPolicy.DYNAMIC
        notice = self.commit(opening.open_iteration(self.state, request, plan if dynamic else None))
        return opening.answer_open(self.state, reader, str(notice))

    def lease(self, reader: str, iteration: str, count: int = 9) -> None:
        request = LeaseWindows(
            worker_id="w1", iteration_id=iteration, reader_id=reader, count=count, sequence=0
        )
        self.commit(leasing.lease_windows(self.state, request))

    def read(self, reader: str, iteration: str, *, final: bool = True) -> None:
        """Reports the row of the only window, as its last one unless `final` is False."""
        self.lease(reader, iteration)
        marks = (RowMark(0, 0, 1, final),)
        sync = Sync(reader_id=reader, iteration_id=iteration, consumed=marks)
        self.commit(leasing.sync(self.state, sync))

    def leave(self, reader: str) -> None:
        self.now_s += 1.0
        job_id = lifecycle.job_of(self.state, reader)
        self.commit(decide.release_reader(self.state, reader, ()))
        self.commit(lifecycle.retire_finished(self.state, job_id, self.now_s))

    def epoch(self, reader: str, repetition: int, **more: object) -> None:
        """Opens a reader, which reads all rows and leaves."""
        answer = self.open(reader, repetition, **more)
        self.read(reader, answer.iteration_id)
        self.leave(reader)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    assert compacted(made.state) == made.state


def test_finished_repetition_shrinks_to_history_entry_once_unread(cluster: Cluster) -> None:
    answer = cluster.open("r1")
    cluster.open("r2", pid=2)
    cluster.read("r1", answer.iteration_id)
    cluster.leave("r1")
    cluster.epoch("r3", 1, pid=3)
    assert answer.iteration_id in cluster.state.iterations, "another reader is there"
    (job,) = cluster.state.jobs.values()
    assert job.history == JobHistory()
    cluster.leave("r2")
    assert list(job.iterations) == [1], "the latest stays for people to look at"
    assert job.history.endings == {0: ("process 1 on host", "process 2 on host")}
    assert job.history.idle_since_s == 1_003.0


def test_repetition_left_unfinished_is_not_retired_and_job_idles_once(cluster: Cluster) -> None:
    cluster.open("r1", 0)
    cluster.epoch("r2", 1)
    cluster.leave("r1")
    assert lifecycle.job_of(cluster.state, "r1") is None
    (job,) = cluster.state.jobs.values()
    assert (list(job.iterations), job.history.idle_since_s) == ([0, 1], 1_002.0)
    assert lifecycle.retire_finished(cluster.state, job.job_id, 1_060.0) == Decision(())


@pytest.mark.parametrize("epochs", [1, 2])
def test_new_run_of_read_repetition_is_refused_naming_its_readers(
    cluster: Cluster, epochs: int
) -> None:
    cluster.epoch("r1", 0)
    if epochs == 2:
        cluster.epoch("r2", 1)
    cluster.now_s += 60.0
    with pytest.raises(FailedPreconditionError) as caught:
        cluster.open("r3", pid=2, started_s=cluster.now_s - 5.0)
    assert str(caught.value) == (
        "repetition 0 of job train was read to its end by process 1 on host, and a job delivers "
        "each repetition once; its last reader left 60 s ago. Use another job_name, or "
        "`dataservice jobs delete HOST:PORT 'train'`"
    )
    with pytest.raises(FailedPreconditionError, match="by process 1 on host"):
        cluster.open("r3", pid=1, started_s=0.0)
    assert len(cluster.state.iterations) == 1


@pytest.mark.parametrize("retired", [False, True])
def test_job_that_begins_anew_at_saved_position_knows_which_repetitions_ended_before(
    cluster: Cluster, retired: bool
) -> None:
    for repetition in range(3 if retired else 1):
        cluster.epoch(f"r{repetition}", repetition)
    position = SavedPosition(consumed=Consumed(), origins=("r1",), peers=(), division="")
    resumed = cluster.open("again", 1, pid=2, position=position, restores=True)
    assert resumed.job_id == "job-again"
    cluster.leave("again")
    cluster.now_s += 60.0
    with pytest.raises(FailedPreconditionError, match=r"repetition 0 .* by process 1 on host"):
        cluster.open("new", pid=3, started_s=cluster.now_s - 5.0)
    (job,) = cluster.state.jobs.values()
    assert not job.history.has_ended(2), "what came after the position is to come again"


def test_late_reader_of_same_run_gets_end_without_notice(cluster: Cluster) -> None:
    for repetition in range(2):
        cluster.epoch(f"r{repetition}", repetition)
    cluster.open("r2", 2)
    request = replace(OPEN, reader_id="r3")
    assert opening.dataset_to_plan(cluster.state, request) is None, "it has no rows left"
    position = SavedPosition(
        consumed=Consumed(), origins=("r0",), peers=("r0",), division=ANY_DIVISION
    )
    again = replace(request, position=position)
    assert opening.dataset_to_plan(cluster.state, again) is not None
    late = cluster.open("r3", 0, pid=3, started_s=cluster.now_s)
    assert late.notice == "", "others of the run are reading"
    iteration = cluster.state.iterations[late.iteration_id]
    assert iteration.is_over_for("r3")
    sync = Sync(reader_id="r3", iteration_id=late.iteration_id)
    cluster.commit(leasing.sync(cluster.state, sync))
    assert leasing.answer_sync(cluster.state, sync).iteration_finished
    assert cluster.open("r4", 0, pid=4).iteration_id == late.iteration_id
    for reader in ("r3", "r4"):
        cluster.leave(reader)
    (job,) = cluster.state.jobs.values()
    assert sorted(job.iterations) == [1, 2], "recalled ones are retired again"
    assert job.history.endings[0] == ("process 1 on host",), "who read it stays known"


def test_program_started_before_end_of_repetition_gets_end_with_notice(cluster: Cluster) -> None:
    cluster.epoch("r1", 0)
    late = cluster.open("r2", 0, pid=2, started_s=900.0)
    assert "was read to its end by process 1 on host while this program was running" in late.notice


def test_program_beside_silent_readers_is_told_that_rows_were_read(cluster: Cluster) -> None:
    answer = cluster.open("r1", plan=TWO_WINDOWS)
    cluster.read("r1", answer.iteration_id)
    assert cluster.open("r2", pid=2).notice == "", "another reads beside it"
    late = cluster.open("r3", pid=3, silent=frozenset({"r1", "r2"}))
    assert "was partly read by process 1 on host, process 2 on host, which is silent" in late.notice
    assert cluster.open("r4", pid=4, silent=frozenset({"r1", "r2"})).notice == "", "r3 reads"


@pytest.mark.parametrize("retired", [False, True])
def test_trainer_of_another_host_that_starts_soon_after_the_end_gets_it_with_notice(
    cluster: Cluster, retired: bool
) -> None:
    began_s = cluster.now_s
    for repetition in range(2 if retired else 1):
        cluster.epoch(f"r{repetition}", repetition)
    cluster.now_s += 1_000.0
    last_s = began_s + lifecycle.START_SKEW_S - 1.0
    late = cluster.open("late", pid=2, host="other", started_s=last_s)
    assert late.notice == (
        "repetition 0 of job train was read to its end by process 1 on host before this program "
        "started, on another host and soon after them: no rows are left. Use another "
        "job_name, or `dataservice jobs delete HOST:PORT 'train'` if it belongs to another run"
    )
    assert cluster.state.iterations[late.iteration_id].is_over_for("late")


def test_program_that_may_be_another_run_is_refused(cluster: Cluster) -> None:
    began_s = cluster.now_s
    cluster.epoch("r1", 0)
    cluster.now_s += 1_000.0
    same_host = {"host": "host", "started_s": began_s + 10.0}
    too_late = {"host": "other", "started_s": began_s + lifecycle.START_SKEW_S + 1.0}
    for may_be_another in (same_host, too_late):
        with pytest.raises(FailedPreconditionError, match="delivers each repetition once"):
            cluster.open("r2", pid=2, **may_be_another)


def test_dataset_made_before_end_of_repetition_gets_end_with_notice(
    cluster: Cluster,
) -> None:
    made_s = cluster.now_s
    cluster.epoch("r1", 0)
    late = cluster.open("r2", 0, made_s=made_s)
    assert "was read to its end by process 1 on host while this program was running" in late.notice
    cluster.leave("r2")
    with pytest.raises(FailedPreconditionError, match="by process 1 on host"):
        cluster.open("r3", 0, made_s=cluster.now_s)


def test_restoring_reader_joins_ended_repetition_without_notice(cluster: Cluster) -> None:
    cluster.epoch("r1", 0)
    cluster.now_s += 100.0
    asking = cluster.open("r2", 0, pid=2, started_s=cluster.now_s, restores=True)
    assert (asking.notice, asking.iteration_id) == ("", "iteration-r1")


def test_unfinished_repetition_continues_with_notice(cluster: Cluster) -> None:
    first = cluster.open("r1")
    cluster.read("r1", first.iteration_id, final=False)
    cluster.leave("r1")
    second = cluster.open("r2", pid=2, started_s=cluster.now_s)
    assert second.iteration_id == first.iteration_id
    assert "was partly read by process 1 on host, which has ended" in second.notice
    assert cluster.open("r3", pid=3).notice == "", "with others, that is how jobs are shared"


def test_passes_begun_by_departed_reader_continue_with_notice(cluster: Cluster) -> None:
    cluster.open("r1", policy=ShardingPolicy.OFF)
    cluster.leave("r1")
    second = cluster.open("r2", pid=2, started_s=cluster.now_s, policy=ShardingPolicy.OFF)
    assert "was partly read by process 1 on host" in second.notice


def test_at_most_once_rows_leased_to_departed_reader_cause_notice() -> None:
    cluster = Cluster()
    first = cluster.open("r1", delivery="at_most_once", plan=TWO_WINDOWS)
    cluster.lease("r1", first.iteration_id, count=1)
    cluster.leave("r1")
    assert "which has ended" in cluster.open("r2", pid=2, delivery="at_most_once").notice


@pytest.mark.parametrize("resumed", [False, True])
def test_unconsumed_repetition_continues_without_notice(cluster: Cluster, resumed: bool) -> None:
    loaded = SavedPosition(
        consumed=Consumed(Ranges([(0, 1)])), origins=("r0",), peers=("r0",), division=""
    )
    first = cluster.open("r1", position=loaded if resumed else None, plan=TWO_WINDOWS)
    cluster.leave("r1")
    second = cluster.open("r2", pid=2, started_s=cluster.now_s)
    assert second.iteration_id == first.iteration_id
    assert second.notice == ""


def test_next_repetition_opens_without_notice(cluster: Cluster) -> None:
    for repetition in range(3):
        answer = cluster.open(f"r{repetition}", repetition)
        assert answer.notice == ""
        cluster.read(f"r{repetition}", answer.iteration_id)
        cluster.leave(f"r{repetition}")


def test_repeated_open_of_finished_repetition_is_not_refused(cluster: Cluster) -> None:
    answer = cluster.open("r1")
    cluster.read("r1", answer.iteration_id)
    assert cluster.open("r1").iteration_id == answer.iteration_id


def test_history_of_thousands_of_repetitions_stays_small() -> None:
    cluster = Cluster(thorough=False)
    for repetition in range(3_000):
        cluster.epoch(f"r{repetition}", repetition)
    (job,) = cluster.state.jobs.values()
    assert list(job.iterations) == [2_999]
    assert len(job.history.endings) == ENDINGS_KEPT
    assert job.history.older.pairs() == ((0, 2_999 - ENDINGS_KEPT),)
    assert job.history.count() == 2_999
    assert compacted(cluster.state) == cluster.state
    cluster.state.departed.clear()
    assert sum(len(encode_frame([fact])) for fact in facts_of(cluster.state)) < 5_000
    with pytest.raises(FailedPreconditionError, match="by an earlier program"):
        cluster.open("late", 7, pid=2, started_s=cluster.now_s)


@pytest.mark.parametrize("policy", [ShardingPolicy.OFF, ShardingPolicy.DYNAMIC])
def test_only_unread_iterations_and_jobs_are_collected(
    cluster: Cluster, policy: ShardingPolicy
) -> None:
    collector = lifecycle.Collector(0.0, 0.0, 0.0)
    answer = cluster.open("r1", policy=policy)
    cluster.open("r2", repetition=1, policy=policy)
    assert collector.collect(cluster.state, 1.0) == Decision(())
    cluster.leave("r1")
    cluster.commit(collector.collect(cluster.state, 2.0))
    assert list(cluster.state.iterations) == ["iteration-r2"]
    fresh = cluster.open("r3", policy=policy)
    assert (fresh.iteration_id, fresh.job_id) == ("iteration-r3", answer.job_id)
    assert fresh.notice == ""
    cluster.leave("r2")
    cluster.leave("r3")
    cluster.commit(collector.collect(cluster.state, 3.0))
    assert (cluster.state.jobs, cluster.state.iterations) == ({}, {})
    assert collector.collect(cluster.state, 4.0) == Decision(())


def test_collector_waits_from_its_first_sight_of_unread_iteration() -> None:
    cluster = Cluster()
    job = cluster.open("r1").job_id
    collector = lifecycle.Collector(5.0, 2.0, 0.0)

    def collected(now_s: float) -> tuple[ev.Event, ...]:
        return collector.collect(cluster.state, now_s).events

    assert collected(90.0) == ()
    cluster.leave("r1")
    assert collected(91.0) == ()
    assert collected(95.0) == ()
    assert collected(96.5) == (), "it looks every two seconds"
    assert collected(97.0) == (
        ev.IterationCollected(iteration_id="iteration-r1"),
        ev.JobDeleted(job_id=job),
    )
    cluster.open("r2")
    assert collected(99.0) == ()
    cluster.leave("r2")
    assert collected(101.0) == (), "the wait begins anew"
    never = lifecycle.Collector(None, 0.0, 0.0)
    assert never.collect(cluster.state, 1e9) == Decision(())


def test_anonymous_job_is_removed_when_its_reader_is_lost_or_leaves(cluster: Cluster) -> None:
    for end in (decide.lose_reader, None):
        cluster.open("r1" if end else "r2", name=None)
        if end is None:
            cluster.leave("r2")
        else:
            cluster.commit(end(cluster.state, "r1"))
        assert (cluster.state.jobs, cluster.state.iterations) == ({}, {})


@given(st.lists(st.integers(0, 60), max_size=150))
def test_ended_repetition_stays_ended_in_history(repetitions: list[int]) -> None:
    history = JobHistory()
    for repetition in repetitions:
        history.record_end(repetition, ())
    assert {r for r in range(70) if history.has_ended(r)} == set(repetitions)
    earlier = history.until(30)
    assert {r for r in range(70) if earlier.has_ended(r)} == {r for r in repetitions if r < 30}
    assert history.count() == len(set(repetitions))
    assert len(history.endings) <= ENDINGS_KEPT
