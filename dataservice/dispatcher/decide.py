"""Decisions about datasets, workers, jobs and readers: (state, request) -> facts and an answer.

Pure: nothing here changes the state, reads a clock or makes an id. `opening` decides how a reader
joins, `leasing` decides about windows. Invariant: a bad request raises, and one that changes
nothing yields no facts, so a repeat costs no journal write and does no harm.
"""

from __future__ import annotations

from collections.abc import Collection

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import shares
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.leasing import consumed_facts
from dataservice.dispatcher.requests import (
    Decision,
    RegisterDataset,
    RegisterWorker,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnknownDatasetError,
)
from dataservice.ranges import RowMark
from dataservice.vocabulary import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    WorkerId,
)

_RESTARTED = "the dispatcher may have been restarted without fault_tolerant_mode"


def register_dataset(state: DispatcherState, request: RegisterDataset) -> Decision:
    """Registers a dataset, or attaches to one of the same id and structure. Answers its id.

    InvalidArgumentError if the dataset of that id has another structure, FailedPreconditionError
    if that id belonged to a deleted dataset.
    """
    if request.dataset_id is None:
        dataset_id = DatasetId(str(state.next_dataset_number))
    else:
        dataset_id = DatasetId(request.dataset_id)
        if not dataset_id:
            raise InvalidArgumentError("dataset_id must not be empty; leave it out for a number")
        if dataset_id in state.datasets:
            _check_same_structure(state.datasets[dataset_id], request)
            return Decision((), dataset_id)
        if state.is_used(dataset_id):
            raise FailedPreconditionError(
                f"dataset {dataset_id!r} was deleted, and its id stays used; choose another"
            )
    registered = ev.DatasetRegistered(
        dataset_id=dataset_id,
        plan=request.plan,
        schema=request.schema,
        cardinality=request.cardinality,
        compression=request.compression,
        fingerprint=request.fingerprint,
    )
    return Decision((registered,), dataset_id)


def _check_same_structure(known: ev.DatasetRegistered, request: RegisterDataset) -> None:
    differences = structure_differences(known, request)
    if differences:
        raise InvalidArgumentError(
            "Datasets with the same ID should have the same structure: dataset "
            f"{known.dataset_id!r} was registered with another {', '.join(differences)}; "
            "choose another dataset_id"
        )


def structure_differences(
    known: ev.DatasetRegistered, other: ev.DatasetRegistered | RegisterDataset
) -> list[str]:
    """Names the properties (schema, cardinality, compression) in which two datasets differ."""
    differences = []
    if known.schema != other.schema:
        differences.append("schema")
    if not _may_be_equal(known.cardinality, other.cardinality):
        differences.append(f"cardinality ({known.cardinality}, now {other.cardinality})")
    if known.compression != other.compression:
        differences.append(f"compression ({known.compression}, now {other.compression})")
    return differences


def _may_be_equal(cardinality: int, other: int) -> bool:
    """True if two cardinalities are equal, or one is a number and the other one not known.

    Earlier versions counted the rows of files when a dataset was registered.
    """
    both = (cardinality, other)
    is_uncounted = UNKNOWN_CARDINALITY in both and INFINITE_CARDINALITY not in both
    return is_uncounted or cardinality == other


def find_dataset(state: DispatcherState, dataset_id: DatasetId) -> ev.DatasetRegistered:
    """Returns the dataset; UnknownDatasetError if none is registered under this id."""
    dataset = state.datasets.get(dataset_id)
    if dataset is None:
        raise UnknownDatasetError(
            f"Dataset id {dataset_id} not found. It must be registered with register_dataset "
            f"before it can be read; {_RESTARTED}"
        )
    return dataset


def check_same_plan(dataset: ev.DatasetRegistered, fingerprint: str) -> None:
    """Raises NotFoundError if the reader's fingerprint is not that of the dataset's plan.

    After a restart without a journal, dataset numbers start over. An empty fingerprint fits all.
    """
    if fingerprint and dataset.fingerprint not in ("", fingerprint):
        raise NotFoundError(
            f"Dataset id {dataset.dataset_id} stands for another dataset than the one that was "
            f"registered by this program; {_RESTARTED}. Distribute it again, or give "
            "register_dataset a dataset_id of its own"
        )


def register_worker(state: DispatcherState, request: RegisterWorker) -> Decision:
    """Adds a worker; an older worker at the same address is lost, as an address has one owner.

    FailedPreconditionError if there is a worker list and it has no place for the address.
    """
    if not request.address:
        raise InvalidArgumentError("a worker must register with the address readers connect to")
    registered = ev.WorkerRegistered(
        worker_id=request.worker_id,
        address=request.address,
        host=request.host,
        pid=request.pid,
        host_id=request.host_id,
        formerly=request.formerly,
    )
    facts = [*shares.bind_place(state, request.address), registered]
    replaced = state.worker_by_address.get(request.address)
    if replaced is not None:
        # Follows the registration: the new worker's tasks keep iterations unfinished in which the
        # old worker had the last task. If the new worker names the old id as its own former one, it
        # is the same process, so nothing has killed it.
        facts.append(ev.WorkerLost(worker_id=replaced, left=replaced == request.formerly))
    return Decision(tuple(facts))


def check_worker(state: DispatcherState, worker_id: WorkerId) -> None:
    """Raises NotFoundError for an unregistered worker, which asks it to register again."""
    if worker_id not in state.workers:
        raise NotFoundError(
            f"worker {worker_id} is not registered: it was silent for longer than its lease, "
            f"another worker took its address, or {_RESTARTED}"
        )


def ended_iterations(
    state: DispatcherState, iteration_ids: Collection[IterationId]
) -> tuple[IterationId, ...]:
    """Returns those of the iterations that are finished or gone: they need no producers."""
    return tuple(
        iteration_id
        for iteration_id in iteration_ids
        if (iteration := state.iterations.get(iteration_id)) is None or iteration.finished
    )


def lose_worker(state: DispatcherState, worker_id: WorkerId, *, left: bool = False) -> Decision:
    """Removes a worker whose lease has expired, or that leaves by itself (`left`)."""
    if worker_id not in state.workers:
        return Decision(())
    return Decision((ev.WorkerLost(worker_id=worker_id, left=left),))


def find_reader(
    state: DispatcherState, reader_id: ReaderId, iteration_id: IterationId
) -> Iteration:
    """Returns the iteration of a reader; otherwise raises an error that says why it is gone."""
    if state.iteration_of_reader.get(reader_id) != iteration_id:
        raise reader_gone(state, reader_id)
    return state.iterations[iteration_id]


def reader_gone(
    state: DispatcherState, reader_id: ReaderId
) -> FailedPreconditionError | NotFoundError:
    """Returns the error that tells why the dispatcher does not serve this reader."""
    if reader_id in state.departed:
        return FailedPreconditionError(
            f"reader {reader_id} is fenced: {state.departed[reader_id]}; make a new iterator"
        )
    return NotFoundError(f"Unknown reader {reader_id}: {_RESTARTED}")


def release_reader(
    state: DispatcherState, reader_id: ReaderId, consumed: tuple[RowMark, ...]
) -> Decision:
    """Removes a reader that closes, after recording its last marks; no facts if it is gone."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    if iteration_id is None:
        return Decision(())
    facts = consumed_facts(state.iterations[iteration_id], reader_id, consumed)
    return Decision((*facts, ev.ReaderReleased(reader_id=reader_id)))


def lose_reader(state: DispatcherState, reader_id: ReaderId) -> Decision:
    """Removes a reader that was silent for too long."""
    if reader_id not in state.iteration_of_reader:
        return Decision(())
    return Decision((ev.ReaderLost(reader_id=reader_id),))


def finish_task(state: DispatcherState, worker_id: WorkerId, iteration_id: IterationId) -> Decision:
    """Records that a worker has handed out its whole pass; repeats and late reports do nothing."""
    iteration = state.iterations.get(iteration_id)
    if iteration is not None and iteration.shards:
        return shares.finish_shard(state, worker_id, iteration)
    if iteration is None or iteration.tasks.get(worker_id) is not False:
        return Decision(())
    return Decision((ev.TaskFinished(iteration_id=iteration_id, worker_id=worker_id),))


def delete_job(state: DispatcherState, job_name: str) -> Decision:
    """Deletes a job by its name or id; its readers are fenced."""
    job_id = state.job_by_name.get(job_name, JobId(job_name))
    if job_id not in state.jobs:
        known = ", ".join(sorted(state.job_by_name)) or "none"
        raise NotFoundError(f"no job is named {job_name!r}; named jobs: {known}")
    return Decision((ev.JobDeleted(job_id=job_id),))


def delete_dataset(state: DispatcherState, dataset_id: DatasetId) -> Decision:
    """Deletes a dataset; FailedPreconditionError while a job reads it or a snapshot saves it."""
    if dataset_id not in state.datasets:
        raise NotFoundError(
            f"no dataset is registered as {dataset_id!r}; `dataservice datasets list` tells which "
            "there are"
        )
    jobs = [job.name or job.job_id for job in state.jobs.values() if job.dataset_id == dataset_id]
    if jobs:
        raise FailedPreconditionError(
            f"dataset {dataset_id} is read by {', '.join(sorted(jobs))}; wait for the end of it, "
            "or delete it first with `dataservice jobs delete`"
        )
    saving = [s.path for s in state.snapshots.open_ones() if s.dataset_id == dataset_id]
    if saving:
        raise FailedPreconditionError(
            f"dataset {dataset_id} is being saved to {', '.join(saving)}; wait for the end of it, "
            "or cancel it first with `dataservice snapshots cancel`"
        )
    return Decision((ev.DatasetDeleted(dataset_id=dataset_id),))
