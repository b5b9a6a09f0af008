"""Decisions about readers that join: which repetition of which job a reader joins or begins.

Pure: nothing here changes the state, reads a clock or makes an id. Invariants: a retried request
joins no reader twice; the joined repetition is as the request describes it, or the decision raises.
"""

from __future__ import annotations

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import lifecycle, ordering, positions, rounds, shares
from dataservice.dispatcher.decide import (
    check_same_plan,
    find_dataset,
    reader_gone,
    structure_differences,
)
from dataservice.dispatcher.jobs import Iteration, Job
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import Decision, OpenAnswer, OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.vocabulary import (
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    INFINITE_CARDINALITY,
    ReaderId,
    ShardingPolicy,
)

_LISTS_SOURCES = (ShardingPolicy.DYNAMIC, ShardingPolicy.FILE, ShardingPolicy.FILE_OR_DATA)


def find_iteration(state: DispatcherState, request: OpenIteration) -> Iteration | None:
    """Returns the iteration that the request joins; None if it has to begin, or to begin anew.

    Checks the request, also against the job of that name.
    """
    dataset = find_dataset(state, request.dataset_id)
    check_same_plan(dataset, request.fingerprint)
    _check_cached(request, dataset.cardinality)
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
    return None if positions.replaces_iteration(iteration, request) else iteration


def dataset_to_plan(state: DispatcherState, request: OpenIteration) -> ev.DatasetRegistered | None:
    """Returns the dataset whose sources must be listed before the repetition can begin, if any.

    None if the repetition has begun, if it has ended and no position is loaded, or if the policy
    lists no sources. If the job exists, this is the job's dataset, not the request's.
    NotFoundError for a static policy without a worker list.
    """
    if request.reader_id in state.departed:
        raise reader_gone(state, request.reader_id)
    if find_iteration(state, request) is not None or request.policy not in _LISTS_SOURCES:
        return None
    job = _job_to_begin(state, request)
    if request.position is None and lifecycle.is_retired(job, request):
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


def _check_cached(request: OpenIteration, cardinality: int) -> None:
    """Raises InvalidArgumentError if the request asks for a cache that cannot be served.

    All trainers read one endless sequence per worker, so the job has a name by which they find it,
    one repetition, and neither order nor rounds.
    """
    if not request.options.cross_trainer_cache:
        return
    if request.job_name is None:
        raise InvalidArgumentError("a cross-trainer cache requires named jobs; give a job_name")
    if request.options.num_consumers or request.options.ordered:
        raise InvalidArgumentError(
            "a cross-trainer cache excludes coordinated reads and ordered=True"
        )
    if cardinality != INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            "a cross-trainer cache requires the input dataset to be infinite, got cardinality "
            f"{cardinality}; end the dataset with repeat()"
        )
    if request.repetition:
        raise InvalidArgumentError(
            f"job {request.job_name} has a cross-trainer cache, and so one repetition "
            f"without an end: there is no repetition {request.repetition}. Keep using the "
            "first iterator, or iterate over a new dataset object"
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
    """Returns the job that the new repetition belongs to; None if the job begins with it."""
    job = _named_job(state, request)
    return None if positions.replaces_job(state, job, request) else job


def _job_differences(state: DispatcherState, job: Job, request: OpenIteration) -> list[str]:
    differences = []
    if job.policy != request.policy:
        differences.append(f"policy (existing {job.policy.name}, got {request.policy.name})")
    if job.delivery != request.delivery:
        differences.append(f"delivery (existing {job.delivery}, got {request.delivery})")
    differences.extend(job.options.differences(request.options))
    # Every trainer registers the dataset that it distributes, so equal datasets have several ids.
    if job.dataset_id != request.dataset_id:
        existing = state.datasets[job.dataset_id]
        requested = state.datasets[request.dataset_id]
        other = structure_differences(existing, requested)
        if existing.fingerprint and requested.fingerprint not in ("", existing.fingerprint):
            other.append("plan")
        if other:
            differences.append(f"dataset {job.dataset_id} has another {', '.join(other)}")
    return differences


def open_iteration(
    state: DispatcherState, request: OpenIteration, plan: WindowPlan | str | None
) -> Decision:
    """Joins a reader to its repetition, which begins with `plan` if it has not begun yet.

    Under a static policy `plan` is the digest of the listed files. A retry with the same reader id
    joins the reader once. Answers the notice of an OpenAnswer, which `answer_open` makes of it.
    """
    if request.reader_id in state.departed:
        raise reader_gone(state, request.reader_id)
    if request.owner in state.released_owners:
        raise FailedPreconditionError(
            f"the readers of {request.owner} were declared lost; join again as another owner"
        )
    iteration = find_iteration(state, request)
    job = _named_job(state, request)
    is_new = request.reader_id not in state.iteration_of_reader
    # A reader that loads a position knows that the repetition was read before.
    needs_notice = is_new and request.position is None and not request.restores
    notice = lifecycle.notice_of_earlier_readers(state, job, request) if needs_notice else ""
    if iteration is None:
        facts = _begin(state, request, job, plan)
        iteration_id, table = request.iteration_id, None
    else:
        facts = positions.join(state, iteration, request)
        ordering.check_alone(state, iteration, request)
        iteration_id, table = iteration.iteration_id, iteration.rounds
    if is_new:
        joined = ev.ReaderJoined(
            reader_id=request.reader_id,
            iteration_id=iteration_id,
            host=request.reader_host,
            pid=request.reader_pid,
            owner=request.owner,
        )
        before, after = rounds.join(table, request, iteration_id)
        facts += [*before, joined, *after]
    return Decision(tuple(facts), notice)


def answer_open(state: DispatcherState, reader_id: ReaderId, notice: str) -> OpenAnswer:
    """Answers what a reader has joined, from the state to which the facts have been applied."""
    iteration = state.iterations[state.iteration_of_reader[reader_id]]
    return OpenAnswer(
        iteration.job_id,
        iteration.iteration_id,
        state.jobs[iteration.job_id].dataset_id,
        len(iteration.shards),
        iteration.listing,
        notice,
        "" if iteration.windows is None else iteration.windows.plan.division,
    )


def _begin(
    state: DispatcherState,
    request: OpenIteration,
    known: Job | None,
    plan: WindowPlan | str | None,
) -> list[ev.Event]:
    """Returns the facts that begin a new iteration; a retired one is only recalled."""
    job = _job_to_begin(state, request)
    if job is not None and request.position is None and lifecycle.is_retired(job, request):
        return [lifecycle.recall(job, request)]
    if plan is None and request.policy is ShardingPolicy.DYNAMIC:
        raise UnavailableError("the job was deleted while it was being opened; try again")
    facts: list[ev.Event] = []
    # Even if its job is replaced as well, so that its readers learn that a position was loaded.
    if known is not None and request.repetition in known.iterations:
        facts.append(ev.IterationCollected(iteration_id=known.iterations[request.repetition]))
    if job is None:
        facts += _job_begun(state, request, known)
    begun = ev.IterationCreated(
        iteration_id=request.iteration_id,
        job_id=request.job_id if job is None else job.job_id,
        repetition=request.repetition,
        num_shards=len(state.worker_list) if request.policy.is_static else 0,
        listing=plan if isinstance(plan, str) else "",
    )
    facts.append(begun)
    resumed = positions.begin(request, plan)
    if isinstance(plan, WindowPlan):
        facts.append(ev.WindowsPlanned(iteration_id=request.iteration_id, plan=plan))
        facts.extend(resumed or [ev.RoundOpened(iteration_id=request.iteration_id)])
    return facts


def _job_begun(
    state: DispatcherState, request: OpenIteration, replaced: Job | None
) -> list[ev.Event]:
    """Returns the facts that begin a job, in place of the one of that name if there is one."""
    created = _job_created(request)
    if replaced is None:
        return [created]
    # Training that goes on from a position has had the repetitions before it.
    history = lifecycle.carried_history(state, replaced, request.repetition)
    carried = [lifecycle.history_fact(request.job_id, history)] if history.count() else []
    return [ev.JobDeleted(job_id=replaced.job_id), created, *carried]


def _job_created(request: OpenIteration) -> ev.JobCreated:
    return ev.JobCreated(
        job_id=request.job_id,
        name=request.job_name,
        dataset_id=request.dataset_id,
        policy=request.policy,
        delivery=request.delivery,
        options=request.options,
        created_s=request.opened_s,
    )
