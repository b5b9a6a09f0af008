"""Decisions about datasets, workers, jobs and readers: (state, request) -> facts and an answer.

Pure: nothing here changes the state, reads a clock or makes an id. Bad requests raise; a request
that changes nothing has no facts, so it costs no journal write and may be repeated freely.
Decisions about windows are in `delivery`.
"""

from __future__ import annotations

from collections.abc import Collection

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import lifecycle, ordering, positions, rounds, shares
from dataservice.dispatcher.caching import check_cached
from dataservice.dispatcher.delivery import consumed_facts
from dataservice.dispatcher.jobs import Iteration, Job
from dataservice.dispatcher.parties import Dataset
from dataservice.dispatcher.plans import RowMark, WindowPlan
from dataservice.dispatcher.requests import (
    Decision,
    OpenAnswer,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
)
from dataservice.dispatcher.state import AT_MOST_ONCE, EXACTLY_ONCE, DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)

_LISTS_SOURCES = (ShardingPolicy.DYNAMIC, ShardingPolicy.FILE, ShardingPolicy.FILE_OR_DATA)
_RESTARTED = "the dispatcher may have been restarted without fault_tolerant_mode"


def register_dataset(state: DispatcherState, request: RegisterDataset) -> Decision:
    """Answers the DatasetId; an explicit id that exists must have the same structure."""
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


def _check_same_structure(known: Dataset, request: RegisterDataset) -> None:
    differences = _structure_differences(known, request)
    if differences:
        raise InvalidArgumentError(
            "Datasets with the same ID should have the same structure: dataset "
            f"{known.dataset_id!r} was registered with another {', '.join(differences)}; "
            "choose another dataset_id"
        )


def _structure_differences(known: Dataset, other: Dataset | RegisterDataset) -> list[str]:
    differences = []
    if known.schema != other.schema:
        differences.append("schema")
    if known.cardinality != other.cardinality:
        differences.append(f"cardinality ({known.cardinality}, now {other.cardinality})")
    if known.compression != other.compression:
        differences.append(f"compression ({known.compression}, now {other.compression})")
    return differences


def find_dataset(state: DispatcherState, dataset_id: DatasetId) -> Dataset:
    """The dataset, or NotFoundError."""
    dataset = state.datasets.get(dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"Dataset id {dataset_id} not found. It must be registered with register_dataset "
            f"before it can be read; {_RESTARTED}"
        )
    return dataset


def register_worker(state: DispatcherState, request: RegisterWorker) -> Decision:
    """Adds a worker; an older one at the same address is lost, since an address has one owner.

    FailedPreconditionError when there is a worker list that has no place for the address.
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
        # After the new one, whose tasks keep iterations going of which the old had the last task.
        # The same process, if it says so, which nothing has killed then.
        facts.append(ev.WorkerLost(worker_id=replaced, left=replaced == request.formerly))
    return Decision(tuple(facts))


def check_worker(state: DispatcherState, worker_id: WorkerId) -> None:
    """NotFoundError asks the worker to register again."""
    if worker_id not in state.workers:
        raise NotFoundError(
            f"worker {worker_id} is not registered: it was silent for longer than its lease, "
            f"another worker took its address, or {_RESTARTED}"
        )


def ended_iterations(
    state: DispatcherState, iteration_ids: Collection[IterationId]
) -> tuple[IterationId, ...]:
    """Those that a worker need not keep producers for."""
    return tuple(
        iteration_id
        for iteration_id in iteration_ids
        if (iteration := state.iterations.get(iteration_id)) is None or iteration.finished
    )


def lose_worker(state: DispatcherState, worker_id: WorkerId, *, left: bool = False) -> Decision:
    """A worker's lease ran out, or it said that it leaves."""
    if worker_id not in state.workers:
        return Decision(())
    return Decision((ev.WorkerLost(worker_id=worker_id, left=left),))


def check_policy(policy: int) -> ShardingPolicy:
    """The policy, or an error for one that is unknown."""
    try:
        return ShardingPolicy(policy)
    except ValueError:
        raise InvalidArgumentError(f"unknown sharding policy {policy}") from None


def find_iteration(state: DispatcherState, request: OpenIteration) -> Iteration | None:
    """The running repetition that the request asks for; None when it has yet to begin, or anew.

    Checks the request against the job of that name.
    """
    dataset = find_dataset(state, request.dataset_id)
    check_policy(request.policy)
    check_cached(request, dataset)
    rounds.check_request(request, dataset.cardinality)
    _check_open(request)
    shares.check_list(state, request.policy)
    joined = state.iteration_of_reader.get(request.reader_id)
    if joined is not None:
        return state.iterations[joined]
    job = _named_job(state, request)
    if job is None or request.repetition not in job.iterations:
        return None
    iteration = state.iterations[job.iterations[request.repetition]]
    return None if positions.gives_way(iteration, request) else iteration


def dataset_to_plan(state: DispatcherState, request: OpenIteration) -> Dataset | None:
    """The dataset whose sources must be listed before the repetition can begin, if any.

    None for a repetition that has begun, and for a policy that divides no sources. For a job that
    exists it is the job's, not the request's. NotFoundError for a static policy without a list.
    """
    if request.reader_id in state.departed:
        raise reader_gone(state, request.reader_id)
    if find_iteration(state, request) is not None or request.policy not in _LISTS_SOURCES:
        return None
    job = _job_to_begin(state, request)
    if request.position is None and lifecycle.is_over(job, request):
        return None
    return state.datasets[request.dataset_id if job is None else job.dataset_id]


def _check_open(request: OpenIteration) -> None:
    if request.job_name == "":
        raise InvalidArgumentError("job_name must not be empty; leave it out for a private job")
    if request.repetition < 0:
        raise InvalidArgumentError(f"repetition must not be negative, got {request.repetition}")
    if request.delivery not in (EXACTLY_ONCE, AT_MOST_ONCE):
        raise InvalidArgumentError(
            f"delivery must be {EXACTLY_ONCE!r} or {AT_MOST_ONCE!r}, got {request.delivery!r}"
        )


def _named_job(state: DispatcherState, request: OpenIteration) -> Job | None:
    if request.job_name is None or request.job_name not in state.job_by_name:
        return None
    job = state.jobs[state.job_by_name[request.job_name]]
    differences = _job_differences(state, job, request)
    if differences:
        raise InvalidArgumentError(
            f"Tried to create job with name {request.job_name}, but found an existing job with "
            f"different parameters: {'; '.join(differences)}. Use another job_name, or delete the "
            f"job with `dataservice jobs delete`"
        )
    return job


def _job_to_begin(state: DispatcherState, request: OpenIteration) -> Job | None:
    """The job that a new repetition belongs to; None when the job begins with it."""
    job = _named_job(state, request)
    return None if positions.replaces_job(state, job, request) else job


def _job_differences(state: DispatcherState, job: Job, request: OpenIteration) -> list[str]:
    differences = []
    if job.policy != request.policy:
        now = ShardingPolicy(request.policy).name
        differences.append(f"policy (existing {job.policy.name}, got {now})")
    if job.delivery != request.delivery:
        differences.append(f"delivery (existing {job.delivery}, got {request.delivery})")
    differences.extend(job.options.differences(request.options))
    # Every trainer registers the dataset it distributes, so ids differ where data do not.
    if job.dataset_id != request.dataset_id:
        existing = state.datasets[job.dataset_id]
        requested = state.datasets[request.dataset_id]
        other = _structure_differences(existing, requested)
        if existing.fingerprint and requested.fingerprint not in ("", existing.fingerprint):
            other.append("plan")
        if other:
            differences.append(f"dataset {job.dataset_id} has another {', '.join(other)}")
    return differences


def open_iteration(
    state: DispatcherState, request: OpenIteration, plan: WindowPlan | str | None
) -> Decision:
    """Joins a reader to its repetition, which begins now with `plan` if there is none yet.

    Under a static policy the plan is what stands for the listed files. A retry with the reader's
    id joins nothing twice. Answers an OpenAnswer.
    """
    if request.reader_id in state.departed:
        raise reader_gone(state, request.reader_id)
    if request.owner in state.released_owners:
        raise FailedPreconditionError(
            f"the readers of {request.owner} were given up as lost; begin as another owner"
        )
    iteration = find_iteration(state, request)
    job = _named_job(state, request)
    is_new = request.reader_id not in state.iteration_of_reader
    # Who loads a position knows of those who read before.
    notice = lifecycle.judge(state, job, request) if is_new and request.position is None else ""
    facts: list[ev.Event] = []
    known, job = job, _job_to_begin(state, request) if iteration is None else job
    if job is not None and request.position is None and lifecycle.is_over(job, request):
        facts.append(lifecycle.recall(job, request))
        answer = OpenAnswer(job.job_id, request.iteration_id, job.dataset_id)
    elif iteration is None:
        if plan is None and request.policy is ShardingPolicy.DYNAMIC:
            raise UnavailableError("the job was deleted while it was being opened; try again")
        num_shards = len(state.worker_list) if request.policy.is_static else 0
        facts, answer = _begin(request, job, plan, num_shards)
        if known is not None and job is None:
            facts.insert(0, ev.JobDeleted(job_id=known.job_id))
    else:
        facts = positions.join(state, iteration, request)
        ordering.check_alone(state, iteration, request)
        answer = OpenAnswer(
            iteration.job_id,
            iteration.iteration_id,
            state.jobs[iteration.job_id].dataset_id,
            len(iteration.shards),
            iteration.listing,
            division="" if iteration.windows is None else iteration.windows.plan.division,
        )
    if is_new:
        joined = ev.ReaderJoined(
            reader_id=request.reader_id,
            iteration_id=answer.iteration_id,
            host=request.reader_host,
            pid=request.reader_pid,
            owner=request.owner,
        )
        table = None if iteration is None else iteration.rounds
        before, after = rounds.join(table, request, answer.iteration_id)
        facts += [*before, joined, *after]
    return Decision(tuple(facts), answer._replace(notice=notice))


def _begin(
    request: OpenIteration, job: Job | None, plan: WindowPlan | str | None, num_shards: int
) -> tuple[list[ev.Event], OpenAnswer]:
    facts: list[ev.Event] = []
    job_id = request.job_id if job is None else job.job_id
    dataset_id = request.dataset_id if job is None else job.dataset_id
    if job is None:
        created = ev.JobCreated(
            job_id=job_id,
            name=request.job_name,
            dataset_id=dataset_id,
            policy=ShardingPolicy(request.policy),
            delivery=request.delivery,
            options=request.options,
            created_s=request.opened_s,
        )
        facts.append(created)
    if job is not None and request.repetition in job.iterations:
        facts.append(ev.IterationCollected(iteration_id=job.iterations[request.repetition]))
    iteration_id = request.iteration_id
    listing = plan if isinstance(plan, str) else ""
    begun = ev.IterationCreated(
        iteration_id=iteration_id,
        job_id=job_id,
        repetition=request.repetition,
        num_shards=num_shards,
        listing=listing,
    )
    facts.append(begun)
    resumed = positions.begin(request, iteration_id, plan)
    division = ""
    if isinstance(plan, WindowPlan):
        division = plan.division
        facts.append(ev.WindowsPlanned(iteration_id=iteration_id, plan=plan))
        facts.extend(resumed or [ev.RoundOpened(iteration_id=iteration_id)])
    return facts, OpenAnswer(
        job_id, iteration_id, dataset_id, num_shards, listing, division=division
    )


def find_reader(
    state: DispatcherState, reader_id: ReaderId, iteration_id: IterationId
) -> Iteration:
    """The iteration of a reader; an error that says what became of the reader otherwise."""
    if state.iteration_of_reader.get(reader_id) != iteration_id:
        raise reader_gone(state, reader_id)
    return state.iterations[iteration_id]


def reader_gone(
    state: DispatcherState, reader_id: ReaderId
) -> FailedPreconditionError | NotFoundError:
    """Why the dispatcher does not serve this reader."""
    if reader_id in state.departed:
        return FailedPreconditionError(
            f"reader {reader_id} is fenced: {state.departed[reader_id]}; make a new iterator"
        )
    return NotFoundError(f"Unknown reader {reader_id}: {_RESTARTED}")


def release_reader(
    state: DispatcherState, reader_id: ReaderId, consumed: tuple[RowMark, ...]
) -> Decision:
    """A reader closes; one that is gone already has nothing to release."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    if iteration_id is None:
        return Decision(())
    facts = consumed_facts(state.iterations[iteration_id], reader_id, consumed)
    return Decision((*facts, ev.ReaderReleased(reader_id=reader_id)))


def lose_reader(state: DispatcherState, reader_id: ReaderId) -> Decision:
    """A reader was silent for too long."""
    if reader_id not in state.iteration_of_reader:
        return Decision(())
    return Decision((ev.ReaderLost(reader_id=reader_id),))


def finish_task(state: DispatcherState, worker_id: WorkerId, iteration_id: IterationId) -> Decision:
    """A worker has handed out all of its pass; repeats and late reports change nothing."""
    iteration = state.iterations.get(iteration_id)
    if iteration is not None and iteration.shards:
        return shares.finish_shard(state, worker_id, iteration)
    if iteration is None or iteration.tasks.get(worker_id) is not False:
        return Decision(())
    return Decision((ev.TaskFinished(iteration_id=iteration_id, worker_id=worker_id),))


def delete_job(state: DispatcherState, job_name: str) -> Decision:
    """Deletes a job by its name or id; its readers are fenced."""
    job_id = state.job_by_name.get(job_name)
    if job_id is None:
        job_id = next((known for known in state.jobs if known == job_name), None)
    if job_id is None:
        known = ", ".join(sorted(state.job_by_name)) or "none"
        raise NotFoundError(f"no job is named {job_name!r}; named jobs: {known}")
    return Decision((ev.JobDeleted(job_id=job_id),))


def delete_dataset(state: DispatcherState, dataset_id: DatasetId) -> Decision:
    """Deletes a dataset; FailedPreconditionError while there is a job that reads it."""
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
