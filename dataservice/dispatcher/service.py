"""The dispatcher at work: one lock around decide and apply, durable before any answer.

Holds the lock, the journal, the clock and who was heard of when; decides nothing itself. Knows
values, not the wire. Invariants: the state changes only by applying facts of one decision at a
time; no answer leaves before the facts it rests on are durable; splits are planned outside the
lock. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dataservice.config import HEARTBEATS_PER_S
from dataservice.dispatcher import decide, delivery, lifecycle, positions, shares
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.commit import GroupCommit, Telling
from dataservice.dispatcher.images import facts_of
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.members import Members, MembersUpdate
from dataservice.dispatcher.overview import Overview
from dataservice.dispatcher.owners import OwnerDesk
from dataservice.dispatcher.parties import Dataset
from dataservice.dispatcher.plans import RowMark, WindowPlan
from dataservice.dispatcher.presence import Presence
from dataservice.dispatcher.quarantine import Evidence
from dataservice.dispatcher.reports import ReaderReport, Reports, WorkerReport
from dataservice.dispatcher.requests import (
    Decision,
    LeaseAnswer,
    LeaseWindows,
    OpenAnswer,
    OpenIteration,
    PositionAnswer,
    RegisterDataset,
    RegisterWorker,
    Sync,
    SyncAnswer,
    WorkerPlace,
)
from dataservice.dispatcher.round_desk import RoundDesk
from dataservice.dispatcher.snapshot_desk import UNDIVIDED, SavingSettings, SnapshotDesk
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import UnavailableError
from dataservice.job_options import JobOptions
from dataservice.omissions import NOTHING, Omitted
from dataservice.runtime.clock import Clock
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)

# Splits of a plan (bytes) for a repetition of it.
Planner = Callable[[bytes, int, JobOptions], WindowPlan]
# What stands for the files of a plan (bytes) that a policy deals out to so many workers.
Lister = Callable[[bytes, ShardingPolicy, int, JobOptions], str]

LONG_POLL_MAX_S: Final = 30.0
# Replaying so many decisions takes about a second; rewriting the state should be rare beside it.
SHORTEN_AFTER_FRAMES: Final = 20_000
_SHORTEN_FACTOR: Final = 4


class DispatcherService:
    """Everything a dispatcher answers, as values.

    `owner_timeout_s`: how long a lost reader's windows wait for the word of its owner.
    `worker_addresses` is the fixed list that static policies divide by. `journal` None keeps
    nothing. `job_gc_timeout_s` None never collects what nobody reads.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        planner: Planner,
        lister: Lister = lambda _plan, _policy, _num_shards, _options: "",
        saving: SavingSettings = UNDIVIDED,
        worker_addresses: Sequence[str] = (),
        journal: Journal | None = None,
        worker_timeout_s: float = 10.0,
        client_timeout_s: float = 60.0,
        owner_timeout_s: float = 60.0,
        job_gc_timeout_s: float | None = 300.0,
        job_gc_check_interval_s: float = 600.0,
        heartbeats_per_s: float = HEARTBEATS_PER_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = DispatcherState()
        self._lock = threading.Lock()
        self._clock = clock
        self._planner = planner
        self._lister = lister
        self._commits = None if journal is None else GroupCommit(journal)
        self.presence = Presence(
            worker_timeout_s, client_timeout_s, clock.now_s(), heartbeats_per_s
        )
        self._reports = Reports()
        self._evidence = Evidence()
        self._members = Members()
        self._denied: dict[ReaderId, dict[WorkerId, int]] = {}
        self._wall_clock = wall_clock
        self._collector = lifecycle.Collector(
            job_gc_timeout_s, job_gc_check_interval_s, clock.now_s()
        )
        self._waiting: dict[IterationId, threading.Condition] = {}
        self._planning: dict[DatasetId, threading.Lock] = {}
        self._closed = False
        self._shorten_at = SHORTEN_AFTER_FRAMES
        self.overview = Overview(
            self._state,
            self._reports,
            self.presence,
            self._transaction,
            self._commit,
            wall_clock,
        )
        self.snapshots = SnapshotDesk(
            self._state, self._transaction, self._commit, self._hear_of_worker, saving
        )
        self.owners = OwnerDesk(self._state, self._transaction, self._commit, owner_timeout_s)
        self.rounds = RoundDesk(self._state, self._transaction, self._commit, self._hear_of_reader)
        if journal is not None:
            self._recover(journal)
        with self._transaction():
            self._commit(shares.set_worker_list(self._state, worker_addresses))

    def interval_s(self, client_id: str) -> float:
        """How long a client that is answered now is to be silent at least."""
        with self._lock:
            return self.presence.tell_interval_s(client_id)

    def close(self) -> None:
        """Ends all waits; later calls raise UnavailableError."""
        with self._lock:
            self._closed = True
            for condition in self._waiting.values():
                condition.notify_all()

    # Datasets

    def register_dataset(self, request: RegisterDataset) -> DatasetId:
        with self._transaction():
            dataset_id: DatasetId = self._commit(decide.register_dataset(self._state, request))
            return dataset_id

    def get_dataset(self, dataset_id: DatasetId) -> Dataset:
        with self._transaction():
            return decide.find_dataset(self._state, dataset_id)

    # Workers

    def register_worker(self, request: RegisterWorker) -> WorkerPlace:
        with self._transaction():
            self._commit(decide.register_worker(self._state, request))
            self.presence.hear_worker(request.worker_id, self._clock.now_s())
            return shares.place_of(self._state, request.worker_id)

    def heartbeat(
        self,
        worker_id: WorkerId,
        iteration_ids: Sequence[IterationId],
        report: WorkerReport,
        number: int = 0,
    ) -> tuple[IterationId, ...]:
        """The iterations that the worker need not keep producers for."""
        with self._transaction() as telling:
            self._hear_of_worker(worker_id)
            self._commit(self._evidence.hear(self._state, worker_id, number))
            self.rounds.hear_of_worker(worker_id, iteration_ids)
            self._reports.note_worker(worker_id, report, self._clock.now_s())
            ended = decide.ended_iterations(self._state, iteration_ids)
            telling.has_facts = bool(ended)
            return ended

    def leave(self, worker_id: WorkerId) -> None:
        """A worker stops: as if its lease had run out. Repeats change nothing."""
        with self._transaction():
            self._commit(decide.lose_worker(self._state, worker_id, left=True))

    def lease_windows(self, request: LeaseWindows, wait_s: float = 0.0) -> LeaseAnswer:
        """Waits up to `wait_s` until there is a window for the reader, or never will be."""
        with self._transaction():
            deadline_s = self._clock.now_s() + min(wait_s, LONG_POLL_MAX_S)
            self._hear_of_worker(request.worker_id)
            self._commit(delivery.give_back(self._state, request))
            while not self._was_denied(request):
                answer = self._try_lease(request)
                left_s = deadline_s - self._clock.now_s()
                if answer.leases or answer.ended:
                    return answer
                if left_s <= 0 or not request.count:
                    break
                self._condition(request.iteration_id).wait(left_s)
                self._check_open()
                decide.check_worker(self._state, request.worker_id)
            denied = self._denied.setdefault(request.reader_id, {})
            denied[request.worker_id] = max(request.sequence, denied.get(request.worker_id, 0))
            return LeaseAnswer((), False)

    def _was_denied(self, request: LeaseWindows) -> bool:
        """Whether the worker has gone on: an answer to a copy of its request would reach nobody.

        Not a fact: copies do not outlive the connections of this process.
        """
        denied = self._denied.get(request.reader_id, {}).get(request.worker_id, 0)
        return 0 < request.sequence <= denied

    def _try_lease(self, request: LeaseWindows) -> LeaseAnswer:
        self._commit(delivery.open_round(self._state, request.iteration_id))
        answer: LeaseAnswer = self._commit(delivery.lease_windows(self._state, request))
        return answer

    def finish_task(self, worker_id: WorkerId, iteration_id: IterationId) -> None:
        with self._transaction():
            self._hear_of_worker(worker_id)
            self._commit(decide.finish_task(self._state, worker_id, iteration_id))

    # Readers

    def open_iteration(self, request: OpenIteration) -> tuple[OpenAnswer, Dataset, MembersUpdate]:
        """Joins a reader; plans the division first when its repetition begins with it.

        Blocks while the sources are listed. Answers also the dataset and the workers to read from.
        """
        request = replace(request, opened_s=self._wall_clock())
        with self._lock:
            self._check_open()
            needed = decide.dataset_to_plan(self._state, request)
        if needed is None:
            return self._join(request, None)
        # One planner per dataset: trainers of a job open it at the same moment.
        with self._planning_lock(needed.dataset_id):
            with self._lock:
                needed = decide.dataset_to_plan(self._state, request)
            plan = None if needed is None else self._plan(needed, request)
            return self._join(request, plan)

    def _plan(self, dataset: Dataset, request: OpenIteration) -> WindowPlan | str:
        if request.policy.is_static:
            count = len(self._state.worker_list)
            return self._lister(dataset.plan, request.policy, count, request.options)
        return self._planner(dataset.plan, request.repetition, request.options).prepare(0)

    def _join(
        self, request: OpenIteration, plan: WindowPlan | str | None
    ) -> tuple[OpenAnswer, Dataset, MembersUpdate]:
        with self._transaction():
            answer: OpenAnswer = self._commit(decide.open_iteration(self._state, request, plan))
            self.presence.hear_reader(request.reader_id, self._clock.now_s())
            dataset = self._state.datasets[answer.dataset_id]
            iteration = self._state.iterations[answer.iteration_id]
            return answer, dataset, shares.members(self._state, iteration, self._members, 0)

    def sync(
        self, request: Sync, report: ReaderReport, members_known: int = 0
    ) -> tuple[SyncAnswer, MembersUpdate]:
        """Records a reader's marks; answers also the workers to read from, or what changed."""
        with self._transaction() as telling:
            iteration = self._hear_of_reader(request.reader_id, request.iteration_id, report)
            self._commit(delivery.sync(self._state, request))
            answer = delivery.answer_sync(self._state, request)
            members = shares.members(self._state, iteration, self._members, members_known)
            telling.has_facts = members.has_news or not delivery.is_idle(request, answer)
            return answer, members

    def describe_position(self, reader_id: ReaderId, iteration_id: IterationId) -> PositionAnswer:
        """What a reader saves besides its own marks."""
        with self._transaction():
            iteration = self._hear_of_reader(reader_id, iteration_id)
            return positions.describe(iteration)

    def release_reader(
        self, reader_id: ReaderId, consumed: tuple[RowMark, ...], omitted: Omitted = NOTHING
    ) -> None:
        with self._transaction():
            iteration_id = self._state.iteration_of_reader.get(reader_id)
            if iteration_id is not None:
                self._reports.note_omitted(iteration_id, reader_id, omitted)
            job_id = lifecycle.job_of(self._state, reader_id)
            self._commit(decide.release_reader(self._state, reader_id, consumed))
            self._commit(lifecycle.settle(self._state, job_id, self._wall_clock()))

    # Time

    def tick(self) -> None:
        """Notes who has been silent for too long; to be called every `presence.tick_s`."""
        with self._transaction():
            now_s = self._clock.now_s()
            silent = self.presence.silent(now_s)
            if silent.stood_still_s:
                logger.warning("stood still for %.1f s: leases renewed", silent.stood_still_s)
                self.owners.renew_all(now_s)
            for worker_id in silent.workers:
                self._commit(decide.lose_worker(self._state, worker_id))
            for reader_id in self.owners.lose(silent.readers, now_s):
                # Also those of a deleted job, whose going is no fact of its own.
                self._reports.drop_reader(reader_id)
            self._collect(now_s)
            self._reports.keep_iterations(self._state.iterations)
            self._shorten_journal()
            ahead = delivery.rounds_ahead(self._state)
        for plan, round_number in ahead:
            plan.prepare(round_number)

    def _collect(self, now_s: float) -> None:
        """Drops what is over, and what nobody has read for too long."""
        wall_s = self._wall_clock()
        for job_id in tuple(self._state.jobs):
            self._commit(lifecycle.settle(self._state, job_id, wall_s))
        iterations, jobs = self._collector.due(self._state, now_s)
        for iteration_id in iterations:
            self._commit(lifecycle.collect_iteration(self._state, iteration_id))
        for job_id in jobs:
            self._commit(lifecycle.collect_job(self._state, job_id))

    def _shorten_journal(self) -> None:
        """Replaces a long history by the state that it led to."""
        if self._commits is None or self._commits.frames_kept < self._shorten_at:
            return
        before = self._commits.frames_kept
        self._commits.replace([ev.encode_frame([event]) for event in facts_of(self._state)])
        self._shorten_at = max(SHORTEN_AFTER_FRAMES, _SHORTEN_FACTOR * self._commits.frames_kept)
        logger.info("the journal had %d frames and has %d", before, self._commits.frames_kept)

    # Inside the lock

    @contextmanager
    def _transaction(self) -> Iterator[Telling]:
        """Holds the lock; then waits, without it, until what was decided or told is durable."""
        telling, commits = Telling(), self._commits
        with self._lock:
            self._check_open()
            before = commits.ticket() if commits is not None else 0
            yield telling
            ticket = commits.ticket() if commits is not None else 0
        if commits is not None and (telling.has_facts or ticket != before):
            commits.wait_durable(ticket)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the dispatcher is shutting down")
        if self._commits is not None:
            self._commits.check()

    def _commit(self, decision: Decision) -> Any:
        """Records and applies a decision; its answer must not leave before it is durable."""
        if decision.events and self._commits is not None:
            self._commits.enqueue(ev.encode_frame(decision.events))
        for event in decision.events:
            touched = delivery.touched(self._state, event, self._waiting)
            self._state.apply(event)
            self._follow(event)
            for iteration_id in touched:
                self._wake(iteration_id)
        return decision.reply

    def _wake(self, iteration_id: IterationId) -> None:
        condition = self._waiting.get(iteration_id)
        if condition is not None:
            condition.notify_all()
            if iteration_id not in self._state.iterations:
                del self._waiting[iteration_id]

    def _wake_if_finished(self, iteration_id: IterationId) -> None:
        """Consumption, which is frequent, matters to those who wait only when it is the last."""
        if self._state.iterations[iteration_id].finished and iteration_id in self._waiting:
            self._waiting.pop(iteration_id).notify_all()

    def _follow(self, event: ev.Event) -> None:
        """Keeps what is known beside the state in step with it, and logs what people ask about."""
        match event:
            case ev.WorkerRegistered():
                logger.info("worker %s registered at %s", event.worker_id, event.address)
                self._members.add(event.worker_id)
            case ev.WorkerLost():
                logger.warning("worker %s is gone", event.worker_id)
                self.presence.drop_worker(event.worker_id)
                self._evidence.forget(event.worker_id)
                self._members.drop(event.worker_id)
                self._reports.drop_worker(event.worker_id)
                for denied in self._denied.values():
                    denied.pop(event.worker_id, None)
            case ev.WindowsAccused():
                self._evidence.doubt(event.worker_id)
            case ev.ReaderReleased() | ev.ReaderLost():
                if isinstance(event, ev.ReaderLost):
                    logger.warning("reader %s is fenced: %s", event.reader_id, event.reason)
                self.presence.drop_reader(event.reader_id)
                self._reports.drop_reader(event.reader_id)
                self._denied.pop(event.reader_id, None)
            case ev.JobDeleted():
                logger.info("job %s deleted", event.job_id)
            case ev.DatasetDeleted():
                logger.info("dataset %s deleted", event.dataset_id)
                self._planning.pop(event.dataset_id, None)
            case ev.RowsConsumed() | ev.WindowsFenced() | ev.WindowsReleased():
                self._wake_if_finished(event.iteration_id)

    def _hear_of_worker(self, worker_id: WorkerId) -> None:
        decide.check_worker(self._state, worker_id)
        self.presence.hear_worker(worker_id, self._clock.now_s())

    def _hear_of_reader(
        self, reader_id: ReaderId, iteration_id: IterationId, report: ReaderReport | None = None
    ) -> Iteration:
        iteration = decide.find_reader(self._state, reader_id, iteration_id)
        self.presence.hear_reader(reader_id, self._clock.now_s())
        self.owners.hear_of(reader_id)
        if report is not None:
            self._reports.note_reader(iteration_id, reader_id, report, self._clock.now_s())
        return iteration

    def _condition(self, iteration_id: IterationId) -> threading.Condition:
        if iteration_id not in self._waiting:
            self._waiting[iteration_id] = threading.Condition(self._lock)
        return self._waiting[iteration_id]

    def _planning_lock(self, dataset_id: DatasetId) -> threading.Lock:
        with self._lock:
            return self._planning.setdefault(dataset_id, threading.Lock())

    def _recover(self, journal: Journal) -> None:
        """Rebuilds the state; everyone who was there counts as just seen."""
        frames = 0
        for frame in journal.replay():
            frames += 1
            for event in ev.decode_frame(frame):
                self._state.apply(event)
        known = (self._state.workers, self._state.iteration_of_reader)
        self.presence.restore(*known, self._clock.now_s())
        for worker_id in self._state.workers:
            self._members.add(worker_id)
        if self._commits is not None:
            self._commits.frames_kept = frames
        if frames:
            logger.info("restored the state from %d journaled decisions", frames)
