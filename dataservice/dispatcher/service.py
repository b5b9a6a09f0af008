"""The dispatcher's request handlers: one method per request, which decides, records and answers.

Responsible for combining the pure decisions with the clock and with the state store, which records
and applies them; decides nothing itself. Opening an iteration and saving a dataset are delegated to
handlers of their own. Knows values, not messages. Invariant: every answer leaves through a
transaction of the store, so the facts it depends on are durable. Thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from dataservice.config import (
    CONTROL_MAX_PLANNERS,
    CONTROL_MAX_POLLS,
    DEFAULT_CLIENT_TIMEOUT_MS,
    DEFAULT_JOB_GC_CHECK_INTERVAL_MS,
    DEFAULT_JOB_GC_TIMEOUT_MS,
    DEFAULT_OWNER_TIMEOUT_MS,
    DEFAULT_WORKER_TIMEOUT_MS,
    HEARTBEATS_PER_S,
    POLLS_REFUSED_PER_S,
)
from dataservice.dispatcher import decide, leasing, lifecycle, positions, rounds, shares
from dataservice.dispatcher.events import DatasetRegistered
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.listing_limit import ListingLimit
from dataservice.dispatcher.long_polls import LongPolls
from dataservice.dispatcher.opening_handlers import Lister, OpeningHandlers, Planner
from dataservice.dispatcher.overview import Overview
from dataservice.dispatcher.owners import OwnerWaits
from dataservice.dispatcher.planning import list_files, plan_snapshot, plan_windows
from dataservice.dispatcher.presence import Presence
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import (
    LeaseAnswer,
    LeaseWindows,
    PositionAnswer,
    RegisterDataset,
    RegisterWorker,
    RoundsAnswer,
    Sync,
    SyncAnswer,
    SyncRounds,
    WorkerPlace,
)
from dataservice.dispatcher.snapshot_handlers import (
    DEFAULT_SNAPSHOTS_PER_WORKER,
    SnapshotHandlers,
    SnapshotPlanner,
)
from dataservice.dispatcher.soft_state import SoftState
from dataservice.dispatcher.state_store import StateStore
from dataservice.dispatcher.worker_set import WorkersUpdate
from dataservice.omissions import NOTHING, Omitted
from dataservice.ranges import RowMark
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    ReaderId,
    SnapshotId,
    WorkerId,
)

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)

LONG_POLL_MAX_S: Final = 30.0
# A tick takes the lock, so that even a dispatcher told to look for unread jobs all the time pauses.
_LEAST_TICK_S: Final = 0.05


class HeartbeatAnswer(NamedTuple):
    """Iterations that need no producers in the worker, and snapshots that it has to begin."""

    ended: tuple[IterationId, ...] = ()
    snapshots: tuple[SnapshotId, ...] = ()


class DispatcherService:
    """The dispatcher's side of every request, in terms of values.

    `owner_timeout_s` is how long the windows of a lost reader wait for a statement of its owner.
    `worker_addresses` is the fixed list by which static policies divide a dataset. With `journal`
    None nothing survives a restart. With `job_gc_timeout_s` None unread jobs and iterations are
    never collected. `max_polls` bounds the calls that wait for windows at once, `max_planners`
    those that plan, or wait for a plan.
    """

    def __init__(
        self,
        *,
        planner: Planner = plan_windows,
        lister: Lister = list_files,
        snapshot_planner: SnapshotPlanner = plan_snapshot,
        snapshots_per_worker: int = DEFAULT_SNAPSHOTS_PER_WORKER,
        worker_addresses: Sequence[str] = (),
        journal: Journal | None = None,
        worker_timeout_s: float = DEFAULT_WORKER_TIMEOUT_MS / 1_000,
        client_timeout_s: float = DEFAULT_CLIENT_TIMEOUT_MS / 1_000,
        owner_timeout_s: float = DEFAULT_OWNER_TIMEOUT_MS / 1_000,
        job_gc_timeout_s: float | None = DEFAULT_JOB_GC_TIMEOUT_MS / 1_000,
        job_gc_check_interval_s: float = DEFAULT_JOB_GC_CHECK_INTERVAL_MS / 1_000,
        heartbeats_per_s: float = HEARTBEATS_PER_S,
        max_polls: int = CONTROL_MAX_POLLS,
        max_planners: int = CONTROL_MAX_PLANNERS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        listing_limit = ListingLimit(max_planners)
        self._polls = LongPolls(max_polls, POLLS_REFUSED_PER_S)
        self.presence = Presence(worker_timeout_s, client_timeout_s, clock(), heartbeats_per_s)
        self._soft_state = SoftState(self.presence)
        self._collector = lifecycle.Collector(job_gc_timeout_s, job_gc_check_interval_s, clock())
        self._store = StateStore(journal, self._soft_state.apply)
        self._state = self._store.state
        self._transaction, self._commit = self._store.transaction, self._store.commit
        self._soft_state.restore(self._state, clock())
        self.overview = Overview(self._store, self._soft_state, wall_clock)
        self.owners = OwnerWaits(self._store, owner_timeout_s)
        self.openings = OpeningHandlers(
            self._store,
            self._soft_state,
            self.owners,
            listing_limit,
            planner,
            lister,
            clock,
            wall_clock,
        )
        self.snapshots = SnapshotHandlers(
            self._store, self._renew_worker, listing_limit, snapshot_planner, snapshots_per_worker
        )
        with self._transaction():
            self._commit(shares.set_worker_list(self._state, worker_addresses))

    def interval_s(self, client_id: str) -> float:
        """Returns how long the client answered now must at least be silent. Takes no lock."""
        return self.presence.least_silence_s(client_id, self._clock())

    def close(self) -> None:
        """Wakes calls that wait for windows; these and later calls raise UnavailableError."""
        self._store.close()

    # Datasets

    def register_dataset(self, request: RegisterDataset) -> DatasetId:
        with self._transaction():
            dataset_id: DatasetId = self._commit(decide.register_dataset(self._state, request))
            return dataset_id

    def get_dataset(self, dataset_id: DatasetId) -> DatasetRegistered:
        with self._transaction():
            return decide.find_dataset(self._state, dataset_id)

    # Workers

    def register_worker(self, request: RegisterWorker) -> WorkerPlace:
        with self._transaction():
            self._commit(decide.register_worker(self._state, request))
            self.presence.renew_worker(request.worker_id, self._clock())
            return shares.place_of(self._state, request.worker_id)

    def heartbeat(
        self,
        worker_id: WorkerId,
        iteration_ids: Sequence[IterationId],
        report: WorkerReport,
        number: int = 0,
        snapshot_ids: Sequence[SnapshotId] = (),
    ) -> HeartbeatAnswer:
        """Handles the heartbeat of a worker that works on these iterations and snapshots."""
        with self._transaction() as transaction:
            self._renew_worker(worker_id)
            self._commit(self._soft_state.evidence.on_heartbeat(self._state, worker_id, number))
            self._commit(rounds.trust(self._state, worker_id, iteration_ids))
            self._soft_state.reports.record_worker(worker_id, report, self._clock())
            answer = HeartbeatAnswer(
                decide.ended_iterations(self._state, iteration_ids),
                self.snapshots.work_for(worker_id, snapshot_ids),
            )
            transaction.answer_has_facts = any(answer)
            return answer

    def leave(self, worker_id: WorkerId) -> None:
        """Handles a worker that stops, as if its lease had expired. Idempotent."""
        with self._transaction():
            self._commit(decide.lose_worker(self._state, worker_id, left=True))

    def lease_windows(self, request: LeaseWindows, wait_s: float = 0.0) -> LeaseAnswer:
        """Leases windows; waits up to `wait_s` for one, or for the end of the reader's windows.

        The number of waiting calls is bounded; beyond it the answer says when to ask again.
        """
        pause_s = 0.0
        with self._transaction(), self._polls.slot() as slot:
            deadline_s = self._clock() + min(wait_s, LONG_POLL_MAX_S)
            self._renew_worker(request.worker_id)
            self._commit(leasing.give_back(self._state, request))
            while not self._soft_state.was_denied(request):
                answer = self._try_lease(request)
                left_s = deadline_s - self._clock()
                if answer.leases or answer.ended:
                    return answer
                if left_s <= 0 or not request.count:
                    break
                if not slot.take():
                    pause_s = self._polls.pause_s(self._clock())
                    break
                self._store.wait_for_change(request.iteration_id, left_s)
                decide.check_worker(self._state, request.worker_id)
            self._soft_state.record_denial(request)
            return LeaseAnswer((), False, pause_s)

    def _try_lease(self, request: LeaseWindows) -> LeaseAnswer:
        self._commit(leasing.open_round(self._state, request.iteration_id))
        answer: LeaseAnswer = self._commit(leasing.lease_windows(self._state, request))
        return answer

    def finish_task(self, worker_id: WorkerId, iteration_id: IterationId) -> None:
        with self._transaction():
            self._renew_worker(worker_id)
            self._commit(decide.finish_task(self._state, worker_id, iteration_id))

    # Readers

    def sync(
        self, request: Sync, report: ReaderReport, known_version: int = 0
    ) -> tuple[SyncAnswer, WorkersUpdate]:
        """Records a reader's marks; also answers the workers to read from, or their changes."""
        with self._transaction() as transaction:
            iteration = self._renew_reader(request.reader_id, request.iteration_id, report)
            self._commit(leasing.sync(self._state, request))
            answer = leasing.answer_sync(self._state, request)
            workers = shares.workers_to_read(
                self._state, iteration, self._soft_state.workers, known_version
            )
            transaction.answer_has_facts = workers.has_changes or not leasing.is_idle(
                request, answer
            )
            return answer, workers

    def sync_rounds(
        self, request: SyncRounds, report: ReaderReport, known_version: int = 0
    ) -> tuple[RoundsAnswer, WorkersUpdate]:
        """Records a consumer's progress and answers how far it may go; workers: see `sync`."""
        with self._transaction():
            iteration = self._renew_reader(request.reader_id, request.iteration_id, report)
            for decision in rounds.sync(self._state, request):
                self._commit(decision)
            workers = shares.workers_to_read(
                self._state, iteration, self._soft_state.workers, known_version
            )
            return rounds.answer(self._state, request), workers

    def describe_position(self, reader_id: ReaderId, iteration_id: IterationId) -> PositionAnswer:
        """Returns the part of a position that a reader saves in addition to its own marks."""
        with self._transaction():
            iteration = self._renew_reader(reader_id, iteration_id)
            return positions.describe(iteration)

    def release_reader(
        self, reader_id: ReaderId, consumed: tuple[RowMark, ...], omitted: Omitted = NOTHING
    ) -> None:
        with self._transaction():
            iteration_id = self._state.iteration_of_reader.get(reader_id)
            if iteration_id is not None:
                self._soft_state.reports.record_omitted(iteration_id, reader_id, omitted)
            job_id = lifecycle.job_of(self._state, reader_id)
            self._commit(decide.release_reader(self._state, reader_id, consumed))
            self._commit(lifecycle.retire_finished(self._state, job_id, self._wall_clock()))

    # Time

    @property
    def tick_s(self) -> float:
        """The interval at which `tick` must run."""
        return min(self.presence.tick_s, max(_LEAST_TICK_S, self._collector.interval_s))

    def tick(self) -> None:
        """Removes clients that were silent for too long; must run every `tick_s`.

        Also collects unread jobs and iterations, shortens the journal and prepares the next rounds
        of windows. If the journal ran out of room, retries its write first.
        """
        self._store.retry()
        with self._transaction():
            now_s = self._clock()
            timed_out = self.presence.take_timed_out(now_s)
            if timed_out.stood_still_s:
                logger.warning(
                    "this dispatcher was suspended for %.1f s, as on a sleeping or overloaded "
                    "machine; that time does not count as silence of workers and readers",
                    timed_out.stood_still_s,
                )
                self.owners.renew_all(now_s)
            for worker_id in timed_out.workers:
                self._commit(decide.lose_worker(self._state, worker_id))
            self._soft_state.forget_readers(self.owners.lose(timed_out.readers, now_s))
            self._collect(now_s)
            self._soft_state.reports.keep_iterations(self._state.iterations)
            ahead = leasing.rounds_ahead(self._state)
        self._store.shorten()
        for plan, round_number in ahead:
            plan.prepare(round_number)

    def _collect(self, now_s: float) -> None:
        """Retires finished iterations; drops iterations and jobs that were unread for too long."""
        wall_s = self._wall_clock()
        for job_id in tuple(self._state.jobs):
            self._commit(lifecycle.retire_finished(self._state, job_id, wall_s))
        self._commit(self._collector.collect(self._state, now_s))

    # Inside the lock

    def _renew_worker(self, worker_id: WorkerId) -> None:
        decide.check_worker(self._state, worker_id)
        self.presence.renew_worker(worker_id, self._clock())

    def _renew_reader(
        self, reader_id: ReaderId, iteration_id: IterationId, report: ReaderReport | None = None
    ) -> Iteration:
        iteration = decide.find_reader(self._state, reader_id, iteration_id)
        now_s = self._clock()
        self.presence.renew_reader(reader_id, now_s)
        self.owners.stop_waiting_for(reader_id)
        if report is not None:
            self._soft_state.reports.record_reader(iteration_id, reader_id, report, now_s)
        return iteration
