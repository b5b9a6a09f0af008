"""Compaction: expresses a state by few facts instead of its history, to keep the journal short.

Pure. Invariant: applying `facts_of(state)` to an empty state gives a state equal to `state`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.images import image_of
from dataservice.dispatcher.jobs import Iteration, Job, JobHistory
from dataservice.dispatcher.lifecycle import history_fact
from dataservice.dispatcher.state import DispatcherState


def facts_of(state: DispatcherState) -> Iterator[ev.Event]:
    """Yields the facts that lead from an empty state to `state`."""
    yield from _registrations(state)
    for job in state.jobs.values():
        yield from _job(job)
    for iteration in state.iterations.values():
        yield from _iteration(iteration)
    yield from state.snapshots.facts()
    for owner in state.released_owners:
        yield ev.OwnerReleased(owner=owner)
    yield ev.ReadersDeparted(reasons=tuple(state.departed.items()))


def _registrations(state: DispatcherState) -> Iterator[ev.Event]:
    yield from state.datasets.values()
    for dataset_id in sorted(state.deleted_datasets):
        yield ev.DatasetDeleted(dataset_id=dataset_id)
    if state.worker_list:
        yield ev.WorkerListSet(addresses=state.worker_list)
    for index, address in state.bound.items():
        yield ev.PlaceBound(index=index, address=address)
    yield from state.workers.values()


def _job(job: Job) -> Iterator[ev.Event]:
    yield ev.JobCreated(
        job_id=job.job_id,
        name=job.name,
        dataset_id=job.dataset_id,
        policy=job.policy,
        delivery=job.delivery,
        options=job.options,
        created_s=job.created_s,
    )
    if job.history != JobHistory():
        yield history_fact(job.job_id, job.history)


def _iteration(iteration: Iteration) -> Iterator[ev.Event]:
    yield ev.IterationRestored(
        iteration_id=iteration.iteration_id,
        job_id=iteration.job_id,
        repetition=iteration.repetition,
        finished=iteration.finished,
        tasks=tuple(iteration.tasks.items()),
        table=None if iteration.windows is None else image_of(iteration.windows),
        shards=tuple(iteration.shards),
        listing=iteration.listing,
        programs=iteration.programs,
        resumption=iteration.resumption and iteration.resumption.copy(),
        rounds=None if iteration.rounds is None else iteration.rounds.to_json(),
    )
    yield from iteration.readers.values()
