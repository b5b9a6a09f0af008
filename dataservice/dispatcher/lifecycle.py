"""Decisions about the end of things: repetitions that are over, jobs that nobody reads.

Pure, like `decide`; times of day are given. Rules: a finished repetition of a named job that
nobody reads shrinks, once there is a later one, to an entry in the job's history. Who asks for it
again gets a plain end while its run goes on, and an error that says who read it when a new run
asks. What nobody has read for a while is collected, the name of a job included.
"""

from __future__ import annotations

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Job, program_of
from dataservice.dispatcher.requests import Decision, OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import FailedPreconditionError
from dataservice.vocabulary import IterationId, JobId, ReaderId


def job_of(state: DispatcherState, reader_id: ReaderId) -> JobId | None:
    """The job that a reader reads, if it is there."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    return None if iteration_id is None else state.iterations[iteration_id].job_id


def count_readers(state: DispatcherState, job: Job) -> int:
    """Readers of all repetitions of a job."""
    return sum(len(state.iterations[i].readers) for i in job.iterations.values())


def settle(state: DispatcherState, job_id: JobId | None, now_s: float) -> Decision:
    """Retires what is finished and unread of a job, and notes that nobody reads it any more.

    The latest stays as it is until another ends, for people who look at the job.
    """
    job = None if job_id is None else state.jobs.get(job_id)
    if job is None or job.name is None:
        return Decision(())
    finished = [
        iteration_id
        for _, iteration_id in sorted(job.iterations.items())
        if state.iterations[iteration_id].finished and not state.iterations[iteration_id].readers
    ]
    facts: list[ev.Event] = [
        ev.IterationRetired(iteration_id=iteration_id) for iteration_id in finished[:-1]
    ]
    if job.history.idle_since_s is None and not count_readers(state, job):
        facts.append(ev.JobIdled(job_id=job.job_id, at_s=now_s))
    return Decision(tuple(facts))


def is_over(job: Job | None, request: OpenIteration) -> bool:
    """Whether the repetition asked for is in the history of its job only."""
    if job is None or request.repetition in job.iterations:
        return False
    return job.history.has_ended(request.repetition)


def recall(job: Job, request: OpenIteration) -> ev.Event:
    """The fact that an ended repetition is there again, as one that has nothing to give."""
    return ev.IterationRecalled(
        iteration_id=request.iteration_id, job_id=job.job_id, repetition=request.repetition
    )


def judge(state: DispatcherState, job: Job | None, request: OpenIteration) -> str:
    """What to tell a reader of those who read its repetition before it; "" when there is nothing.

    FailedPreconditionError when nothing is left of it and the reader belongs to another run: no
    reader of the job is there, and its program began after the last one went, or has read the
    repetition itself, by this dataset or one that it made before this one.
    """
    # Trainers that share a cache take nothing from each other.
    if job is None or job.options.cross_trainer_cache or count_readers(state, job):
        return ""
    iteration_id = job.iterations.get(request.repetition)
    iteration = None if iteration_id is None else state.iterations[iteration_id]
    if iteration is not None and not iteration.finished:
        # One that was only begun, as by who loaded a position for others, is whole.
        if iteration.windows is not None and not iteration.windows.has_given():
            return ""
        return (
            f"{_named(job, request)} was begun by {_listed(iteration.programs)}, who left: what "
            f"they consumed does not come again. {_remedy(job)} to begin anew"
        )
    if iteration is None and not job.history.has_ended(request.repetition):
        return ""
    programs = job.history.endings.get(request.repetition, ())
    if iteration is not None:
        programs = iteration.programs
    if _is_of_the_run(job, request, programs):
        return (
            f"{_named(job, request)} was read to its end by {_listed(programs)} while this program "
            "was there: nothing is left of it"
        )
    raise FailedPreconditionError(
        f"{_named(job, request)} was read to its end by {_listed(programs)}, and a job gives each "
        f"repetition once; its last reader went {_ago(job, request)}. {_remedy(job)}"
    )


def _is_of_the_run(job: Job, request: OpenIteration, programs: tuple[str, ...]) -> bool:
    """Whether the reader's program was there while others read the job, or, where it read the
    repetition itself, another dataset of it was."""
    program = program_of(request.reader_host, request.reader_pid)
    read_it = request.reader_pid and program in programs
    age_s = request.dataset_age_s if read_it else request.program_age_s
    idle_since_s = job.history.idle_since_s
    return idle_since_s is None or request.opened_s - age_s < idle_since_s


def _named(job: Job, request: OpenIteration) -> str:
    return f"repetition {request.repetition} of job {job.name}"


def _remedy(job: Job) -> str:
    return f"Use another job_name, or `dataservice jobs delete HOST:PORT {job.name!r}`"


def _listed(programs: tuple[str, ...]) -> str:
    return ", ".join(programs) or "an earlier program"


def _ago(job: Job, request: OpenIteration) -> str:
    idle_since_s = job.history.idle_since_s
    seconds = 0.0 if idle_since_s is None else max(0.0, request.opened_s - idle_since_s)
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


def collect_iteration(state: DispatcherState, iteration_id: IterationId) -> Decision:
    """Drops an iteration that is still without readers; its repetition may begin anew."""
    iteration = state.iterations.get(iteration_id)
    if iteration is None or not iteration.is_unread:
        return Decision(())
    return Decision((ev.IterationCollected(iteration_id=iteration_id),))


def collect_job(state: DispatcherState, job_id: JobId) -> Decision:
    """Drops a job that is still without readers; its name is free."""
    job = state.jobs.get(job_id)
    if job is None or count_readers(state, job):
        return Decision(())
    return Decision((ev.JobDeleted(job_id=job_id),))


class Collector:
    """Remembers since when what is unread has been; since the dispatcher's start at the longest.

    Not thread-safe; the caller brings monotonic time. `timeout_s` None never collects.
    """

    def __init__(self, timeout_s: float | None, interval_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._checked_s = now_s
        self._iterations: dict[IterationId, float] = {}
        self._jobs: dict[JobId, float] = {}

    def due(
        self, state: DispatcherState, now_s: float
    ) -> tuple[tuple[IterationId, ...], tuple[JobId, ...]]:
        """Iterations, and jobs, to collect now; to be called often, gives some at each check."""
        if self._timeout_s is None:
            return (), ()
        unread = state.unread_iterations()
        self._iterations = {key: self._iterations.get(key, now_s) for key in unread}
        idle = [job.job_id for job in state.jobs.values() if not count_readers(state, job)]
        self._jobs = {key: self._jobs.get(key, now_s) for key in idle}
        if now_s - self._checked_s < self._interval_s:
            return (), ()
        self._checked_s = now_s
        last_s = now_s - self._timeout_s
        return (
            tuple(key for key, since_s in self._iterations.items() if since_s <= last_s),
            tuple(key for key, since_s in self._jobs.items() if since_s <= last_s),
        )
