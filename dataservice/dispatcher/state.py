"""The dispatcher's state: the sum of all recorded facts, and nothing else.

Responsible for applying facts. It validates nothing, because the decisions have done so. Knows no
clock (the service tracks liveness), no I/O and no threads; thread-compatible, not thread-safe.
Invariant: `apply` is total and deterministic, so a replayed journal gives an equal state.
Glossary: a job is a dataset read under given parameters, an iteration is one repetition of a job,
a task is one worker's pass over an iteration that has no windows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.images import table_of
from dataservice.dispatcher.jobs import PROGRAMS_KEPT, Iteration, Job, JobHistory, program_of
from dataservice.dispatcher.resumption import Resumption
from dataservice.dispatcher.round_table import ROUND_FACTS, RoundFact, RoundTable
from dataservice.dispatcher.snapshots import SNAPSHOT_FACTS, SnapshotFact, Snapshots
from dataservice.dispatcher.windows import WindowTable, settle_accusations
from dataservice.dispatcher.worker_iterations import WorkerIterations
from dataservice.ranges import Ranges
from dataservice.vocabulary import (
    EXACTLY_ONCE,
    INFINITE_CARDINALITY,
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    WorkerId,
)

FIRST_DATASET_NUMBER: Final = 1_000
# Departed readers are remembered so that a late call learns the reason; the oldest are forgotten.
DEPARTED_READERS_KEPT: Final = 10_000
RELEASED_OWNERS_KEPT: Final = 10_000


@dataclass(slots=True)
class DispatcherState:
    """All datasets, workers, jobs, iterations and readers.

    A dataset, a worker or a reader is represented by the fact that it was registered or has joined.
    `worker_list` is the configured list of worker addresses, `bound` maps a place of that list to
    the address it belongs to. An id in `deleted_datasets` is never given to another dataset.
    """

    datasets: dict[DatasetId, ev.DatasetRegistered] = field(default_factory=dict)
    deleted_datasets: set[DatasetId] = field(default_factory=set)
    next_dataset_number: int = FIRST_DATASET_NUMBER
    worker_list: tuple[str, ...] = ()
    bound: dict[int, str] = field(default_factory=dict)
    workers: dict[WorkerId, ev.WorkerRegistered] = field(default_factory=dict)
    worker_by_address: dict[str, WorkerId] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    job_by_name: dict[str, JobId] = field(default_factory=dict)
    iterations: dict[IterationId, Iteration] = field(default_factory=dict)
    iteration_of_reader: dict[ReaderId, IterationId] = field(default_factory=dict)
    departed: OrderedDict[ReaderId, str] = field(default_factory=OrderedDict)
    released_owners: OrderedDict[str, None] = field(default_factory=OrderedDict)
    snapshots: Snapshots = field(default_factory=Snapshots)
    # Workers whose possible death some window is accused of; derived, may hold too many.
    accused: set[WorkerId] = field(default_factory=set, compare=False)
    worker_iterations: WorkerIterations = field(default_factory=WorkerIterations, compare=False)

    def apply(self, event: ev.Event) -> None:
        """Applies one fact."""
        _APPLY[type(event)](self, event)

    def worker_at(self, index: int) -> ev.WorkerRegistered | None:
        """Returns the worker at a place of the worker list, or None if it is not registered."""
        worker_id = self.worker_by_address.get(self.bound.get(index, ""))
        return None if worker_id is None else self.workers[worker_id]

    def place_of(self, worker_id: WorkerId) -> int | None:
        """Returns a worker's place on the list; None if it is unknown or there is no list."""
        worker = self.workers.get(worker_id)
        places = (i for i, at in self.bound.items() if worker is not None and at == worker.address)
        return next(places, None)

    def _register_dataset(self, event: ev.DatasetRegistered) -> None:
        self.datasets[event.dataset_id] = event
        self._skip_used_numbers()

    def _delete_dataset(self, event: ev.DatasetDeleted) -> None:
        self.datasets.pop(event.dataset_id, None)
        self.deleted_datasets.add(event.dataset_id)
        self._skip_used_numbers()

    def _skip_used_numbers(self) -> None:
        while self.is_used(DatasetId(str(self.next_dataset_number))):
            self.next_dataset_number += 1

    def is_used(self, dataset_id: DatasetId) -> bool:
        """True if a dataset has, or had, this id."""
        return dataset_id in self.datasets or dataset_id in self.deleted_datasets

    def _set_worker_list(self, event: ev.WorkerListSet) -> None:
        self.worker_list = event.addresses
        self.bound.clear()

    def _bind_place(self, event: ev.PlaceBound) -> None:
        self.bound[event.index] = event.address

    def _register_worker(self, event: ev.WorkerRegistered) -> None:
        self.workers[event.worker_id] = event
        self.worker_by_address[event.address] = event.worker_id
        for iteration in self.iterations.values():
            if event.formerly is not None and iteration.windows is not None:
                iteration.windows.suspicions.absolve(event.formerly)
            job = self.jobs[iteration.job_id]
            if job.has_tasks and not iteration.finished:
                self._give_task(event.worker_id, iteration)

    def _give_task(self, worker_id: WorkerId, iteration: Iteration) -> None:
        iteration.tasks[worker_id] = False
        self.worker_iterations.add(worker_id, iteration.iteration_id)

    def _lose_worker(self, event: ev.WorkerLost) -> None:
        worker = self.workers.pop(event.worker_id, None)
        if worker is None:
            return
        if self.worker_by_address.get(worker.address) == event.worker_id:
            del self.worker_by_address[worker.address]
        self._settle_accusations(event.worker_id, is_lost=not event.left)
        for iteration in self._iterations_of(event.worker_id):
            if iteration.windows is not None:
                iteration.windows.fence_worker(event.worker_id)
            elif iteration.rounds is not None:
                iteration.rounds.suspects.discard(event.worker_id)
            elif self._is_endless(iteration):
                # A pass over an endless dataset never finishes; the next worker begins its own.
                iteration.tasks.pop(event.worker_id, None)
            else:
                iteration.tasks[event.worker_id] = True
            iteration.finish_if_done()
        self.worker_iterations.drop_worker(event.worker_id)
        self.snapshots.lose_worker(event.worker_id)

    def _iterations_of(self, worker_id: WorkerId) -> list[Iteration]:
        """Returns all iterations that may hold leases, tasks, accusations or rounds of a worker."""
        return [self.iterations[involved] for involved in self.worker_iterations.of(worker_id)]

    def _is_endless(self, iteration: Iteration) -> bool:
        dataset_id = self.jobs[iteration.job_id].dataset_id
        return self.datasets[dataset_id].cardinality == INFINITE_CARDINALITY

    def _settle_accusations(self, worker_id: WorkerId, *, is_lost: bool) -> None:
        """Charges the windows accused of this worker's death if it is lost, else acquits them."""
        self.accused.discard(worker_id)
        iterations = self._iterations_of(worker_id)
        tables = [each.windows for each in iterations if each.windows is not None]
        settle_accusations(tables, worker_id, is_lost=is_lost)

    def _acquit_worker(self, event: ev.WorkerAcquitted) -> None:
        self._settle_accusations(event.worker_id, is_lost=False)

    def _create_job(self, event: ev.JobCreated) -> None:
        self.jobs[event.job_id] = Job(
            event.job_id,
            event.name,
            event.dataset_id,
            event.policy,
            event.delivery,
            event.options,
            event.created_s,
        )
        if event.name is not None:
            self.job_by_name[event.name] = event.job_id

    def _delete_job(self, event: ev.JobDeleted) -> None:
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return
        if job.name is not None:
            self.job_by_name.pop(job.name, None)
        for iteration_id in job.iterations.values():
            iteration = self.iterations.pop(iteration_id)
            self.worker_iterations.drop_iteration(iteration_id)
            for reader_id in iteration.readers:
                self._record_departure(reader_id, f"its job {job.name or job.job_id} was deleted")

    def _create_iteration(self, event: ev.IterationCreated) -> None:
        job = self.jobs[event.job_id]
        job.iterations[event.repetition] = event.iteration_id
        iteration = Iteration(event.iteration_id, event.job_id, event.repetition)
        for worker_id in self.workers if job.has_tasks else ():
            self._give_task(worker_id, iteration)
        if job.options.num_consumers:
            iteration.rounds = RoundTable(job.options.num_consumers)
        iteration.shards = [False] * event.num_shards
        iteration.listing = event.listing
        self.iterations[event.iteration_id] = iteration

    def _collect_iteration(self, event: ev.IterationCollected) -> None:
        iteration = self.iterations.pop(event.iteration_id, None)
        if iteration is None:
            return
        self.worker_iterations.drop_iteration(event.iteration_id)
        del self.jobs[iteration.job_id].iterations[iteration.repetition]
        for reader_id in iteration.readers:
            self._record_departure(
                reader_id, "another reader loaded a saved position, from which its job went on"
            )

    def _retire_iteration(self, event: ev.IterationRetired) -> None:
        iteration = self.iterations.pop(event.iteration_id, None)
        if iteration is not None:
            self.worker_iterations.drop_iteration(event.iteration_id)
            job = self.jobs[iteration.job_id]
            del job.iterations[iteration.repetition]
            job.history.record_end(iteration.repetition, iteration.programs)

    def _recall_iteration(self, event: ev.IterationRecalled) -> None:
        self.jobs[event.job_id].iterations[event.repetition] = event.iteration_id
        self.iterations[event.iteration_id] = Iteration(
            event.iteration_id, event.job_id, event.repetition, finished=True
        )

    def _record_idle(self, event: ev.JobIdled) -> None:
        self.jobs[event.job_id].history.idle_since_s = event.at_s

    def _plan_windows(self, event: ev.WindowsPlanned) -> None:
        iteration = self.iterations[event.iteration_id]
        job = self.jobs[iteration.job_id]
        iteration.windows = WindowTable(event.plan, replays=job.delivery == EXACTLY_ONCE)

    def _resume_iteration(self, event: ev.IterationResumed) -> None:
        iteration = self.iterations[event.iteration_id]
        resumption = iteration.resumption = iteration.resumption or Resumption()
        if resumption.load(event.reader_id, event.origins, event.peers, event.consumed):
            self._windows_of(event.iteration_id).resume(resumption.take())
            iteration.finish_if_done()

    def _open_round(self, event: ev.RoundOpened) -> None:
        self._windows_of(event.iteration_id).open_round()
        self.iterations[event.iteration_id].finish_if_done()

    def _join_reader(self, event: ev.ReaderJoined) -> None:
        iteration = self.iterations[event.iteration_id]
        iteration.readers[event.reader_id] = event
        self.iteration_of_reader[event.reader_id] = event.iteration_id
        self.jobs[iteration.job_id].history.idle_since_s = None
        program = program_of(event.host, event.pid)
        if program not in iteration.programs:
            iteration.programs = (*iteration.programs, program)[:PROGRAMS_KEPT]
        if iteration.windows is not None:
            iteration.windows.add_reader(event.reader_id)

    def _release_reader(self, event: ev.ReaderReleased) -> None:
        self._drop_reader(event.reader_id, "it was released")

    def _lose_reader(self, event: ev.ReaderLost) -> None:
        self._drop_reader(event.reader_id, event.reason)

    def _drop_reader(self, reader_id: ReaderId, reason: str) -> None:
        iteration_id = self.iteration_of_reader.get(reader_id)
        if iteration_id is None:
            return
        iteration = self.iterations[iteration_id]
        del iteration.readers[reader_id]
        self._record_departure(reader_id, reason)
        if iteration.windows is not None:
            iteration.windows.forget_reader(reader_id)
            iteration.finish_if_done()
        if iteration.rounds is not None:
            iteration.rounds.leave(reader_id)
        if self.jobs[iteration.job_id].name is None:
            # Without a name, no other reader can ever find the job.
            self._delete_job(ev.JobDeleted(job_id=iteration.job_id))

    def _record_departure(self, reader_id: ReaderId, reason: str) -> None:
        self.iteration_of_reader.pop(reader_id, None)
        self.departed[reader_id] = reason
        while len(self.departed) > DEPARTED_READERS_KEPT:
            self.departed.popitem(last=False)

    def _release_owner(self, event: ev.OwnerReleased) -> None:
        self.released_owners[event.owner] = None
        while len(self.released_owners) > RELEASED_OWNERS_KEPT:
            self.released_owners.popitem(last=False)

    def _lease_windows(self, event: ev.WindowsLeased) -> None:
        self._windows_of(event.iteration_id).lease(
            event.worker_id, event.reader_id, event.sequence, event.windows
        )
        self.worker_iterations.add(event.worker_id, event.iteration_id)

    def _consume_rows(self, event: ev.RowsConsumed) -> None:
        self._windows_of(event.iteration_id).consume(event.reader_id, event.marks)
        self.iterations[event.iteration_id].finish_if_done()

    def _fence_windows(self, event: ev.WindowsFenced) -> None:
        self._windows_of(event.iteration_id).fence(event.windows)
        self.iterations[event.iteration_id].finish_if_done()

    def _accuse_windows(self, event: ev.WindowsAccused) -> None:
        self._windows_of(event.iteration_id).accuse(event.worker_id, event.windows)
        self.worker_iterations.add(event.worker_id, event.iteration_id)
        self.accused.add(event.worker_id)

    def _release_windows(self, event: ev.WindowsReleased) -> None:
        self._windows_of(event.iteration_id).release(event.reader_id, event.marks)
        self.iterations[event.iteration_id].finish_if_done()

    def _change_rounds(self, event: RoundFact) -> None:
        table = self.iterations[event.iteration_id].rounds
        assert table is not None, f"{event.iteration_id} has no rounds"
        table.apply(event)
        for worker_id in table.suspects:
            self.worker_iterations.add(worker_id, event.iteration_id)

    def _finish_task(self, event: ev.TaskFinished) -> None:
        iteration = self.iterations[event.iteration_id]
        iteration.tasks[event.worker_id] = True
        iteration.finish_if_done()

    def _finish_shard(self, event: ev.ShardFinished) -> None:
        iteration = self.iterations[event.iteration_id]
        iteration.shards[event.index] = True
        iteration.finish_if_done()

    def _restore_iteration(self, event: ev.IterationRestored) -> None:
        self.jobs[event.job_id].iterations[event.repetition] = event.iteration_id
        self.iterations[event.iteration_id] = Iteration(
            event.iteration_id,
            event.job_id,
            event.repetition,
            windows=None if event.table is None else table_of(event.table),
            tasks=dict(event.tasks),
            shards=list(event.shards),
            listing=event.listing,
            rounds=None if event.rounds is None else RoundTable.from_json(event.rounds),
            finished=event.finished,
            programs=event.programs,
            resumption=event.resumption,
        )
        iteration = self.iterations[event.iteration_id]
        for worker_id in iteration.workers():
            self.worker_iterations.add(worker_id, event.iteration_id)
        table = iteration.windows
        self.accused.update(() if table is None else table.suspicions.accused())

    def _restore_history(self, event: ev.JobHistoryRestored) -> None:
        self.jobs[event.job_id].history = JobHistory(
            endings={repetition: tuple(programs) for repetition, *programs in event.endings},
            older=Ranges(event.older),
            idle_since_s=event.idle_since_s,
        )

    def _restore_departures(self, event: ev.ReadersDeparted) -> None:
        self.departed.update(event.reasons)

    def _apply_to_snapshot(self, event: SnapshotFact) -> None:
        self.snapshots.apply(event)

    def _windows_of(self, iteration_id: IterationId) -> WindowTable:
        windows = self.iterations[iteration_id].windows
        assert windows is not None, f"{iteration_id} has no windows"
        return windows


_APPLY: dict[type[ev.Event], Callable[[DispatcherState, Any], None]] = {
    ev.DatasetRegistered: DispatcherState._register_dataset,
    ev.DatasetDeleted: DispatcherState._delete_dataset,
    ev.WorkerListSet: DispatcherState._set_worker_list,
    ev.PlaceBound: DispatcherState._bind_place,
    ev.WorkerRegistered: DispatcherState._register_worker,
    ev.WorkerLost: DispatcherState._lose_worker,
    ev.WorkerAcquitted: DispatcherState._acquit_worker,
    ev.JobCreated: DispatcherState._create_job,
    ev.JobDeleted: DispatcherState._delete_job,
    ev.IterationCreated: DispatcherState._create_iteration,
    ev.JobIdled: DispatcherState._record_idle,
    ev.IterationCollected: DispatcherState._collect_iteration,
    ev.IterationRetired: DispatcherState._retire_iteration,
    ev.IterationRecalled: DispatcherState._recall_iteration,
    ev.WindowsPlanned: DispatcherState._plan_windows,
    ev.IterationResumed: DispatcherState._resume_iteration,
    ev.RoundOpened: DispatcherState._open_round,
    ev.ReaderJoined: DispatcherState._join_reader,
    ev.ReaderReleased: DispatcherState._release_reader,
    ev.ReaderLost: DispatcherState._lose_reader,
    ev.OwnerReleased: DispatcherState._release_owner,
    ev.WindowsLeased: DispatcherState._lease_windows,
    ev.RowsConsumed: DispatcherState._consume_rows,
    ev.WindowsFenced: DispatcherState._fence_windows,
    ev.WindowsAccused: DispatcherState._accuse_windows,
    ev.WindowsReleased: DispatcherState._release_windows,
    **dict.fromkeys(ROUND_FACTS, DispatcherState._change_rounds),
    ev.TaskFinished: DispatcherState._finish_task,
    ev.ShardFinished: DispatcherState._finish_shard,
    ev.IterationRestored: DispatcherState._restore_iteration,
    ev.JobHistoryRestored: DispatcherState._restore_history,
    ev.ReadersDeparted: DispatcherState._restore_departures,
    **dict.fromkeys(SNAPSHOT_FACTS, DispatcherState._apply_to_snapshot),
}
