"""Decisions about the end of repetitions and jobs: retiring, recalling and collecting them.

Pure, like `decide`; the caller gives the time of day. Rules: a finished and unread repetition of a
named job shrinks to an entry in the job's history once a later one is finished and unread too. A
reader that asks for an ended repetition gets a plain end if its program belongs to the same run,
and an error that names the earlier programs if it belongs to a new run, or may. Iterations and jobs
that nobody has read for a while are collected, which frees the job's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Job, JobHistory, host_of, program_of
from dataservice.dispatcher.requests import Decision, OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import FailedPreconditionError
from dataservice.vocabulary import JobId, ReaderId

# The trainers of one run start within this time of each other, on their hosts. On a host that has
# read the job already, a program that starts so soon is as likely a script that runs again.
START_SKEW_S: Final = 120.0


def job_of(state: DispatcherState, reader_id: ReaderId) -> JobId | None:
    """Returns the job that a reader reads; None if the reader is not there."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    return None if iteration_id is None else state.iterations[iteration_id].job_id


def count_readers(state: DispatcherState, job: Job) -> int:
    """Returns the number of readers over all repetitions of a job."""
    return sum(len(state.iterations[i].readers) for i in job.iterations.values())


def retire_finished(state: DispatcherState, job_id: JobId | None, now_s: float) -> Decision:
    """Retires a job's finished iterations without readers; records when the job became idle.

    The latest such iteration stays until another one finishes, for people who look at the job.
    """
    job = None if job_id is None else state.jobs.get(job_id)
    if job is None:
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


def is_retired(job: Job | None, request: OpenIteration) -> bool:
    """True if the requested repetition is retired: only the job's history knows of it."""
    if job is None or request.repetition in job.iterations:
        return False
    return job.history.has_ended(request.repetition)


def recall(job: Job, request: OpenIteration) -> ev.Event:
    """Returns the fact that restores a retired repetition as finished, with no rows to give."""
    return ev.IterationRecalled(
        iteration_id=request.iteration_id, job_id=job.job_id, repetition=request.repetition
    )


def carried_history(state: DispatcherState, job: Job, repetition: int) -> JobHistory:
    """Returns what stays known of a job that begins anew at this repetition: the ends before it."""
    history = job.history.until(repetition)
    for earlier, iteration_id in sorted(job.iterations.items()):
        iteration = state.iterations[iteration_id]
        if earlier < repetition and iteration.finished:
            history.record_end(earlier, iteration.programs)
    return history


def history_fact(job_id: JobId, history: JobHistory) -> ev.JobHistoryRestored:
    """Returns the fact that gives a job this history."""
    return ev.JobHistoryRestored(
        job_id=job_id,
        idle_since_s=history.idle_since_s,
        endings=tuple((repetition, *programs) for repetition, programs in history.endings.items()),
        older=history.older.pairs(),
    )


def notice_of_earlier_readers(
    state: DispatcherState, job: Job | None, request: OpenIteration
) -> str:
    """Returns a notice about programs that read the repetition before this reader, or "".

    FailedPreconditionError if the repetition has ended and the reader may belong to another run.
    That is so if the job has no readers, and the reader's program started after the last reader
    left, unless it started soon after the job began, on a host that had no part in the repetition.
    If the program has read this repetition itself, its dataset object counts instead: it was made
    after the last reader left, or is the one through which the repetition was read. Readers that
    are silent, and may be lost, count as if they had left.
    """
    # Trainers that share a cache take nothing from each other.
    if job is None or job.options.cross_trainer_cache or _is_read(state, job, request):
        return ""
    iteration_id = job.iterations.get(request.repetition)
    iteration = None if iteration_id is None else state.iterations[iteration_id]
    if iteration is not None and not iteration.finished:
        # An iteration that has given no rows yet, as after loading others' positions, is whole.
        if iteration.windows is not None and not iteration.windows.has_progressed():
            return ""
        gone = "is silent" if iteration.readers else "has ended"
        return (
            f"{_named(job, request)} was partly read by {_listed(iteration.programs)}, which "
            f"{gone}: what it consumed is not delivered again. {_remedy(job)} to start over"
        )
    if iteration is None and not job.history.has_ended(request.repetition):
        return ""
    programs = job.history.endings.get(request.repetition, ())
    if iteration is not None:
        programs = iteration.programs
    if _is_of_the_run(job, request, programs):
        return (
            f"{_named(job, request)} was read to its end by {_listed(programs)} while this "
            "program was running: no rows are left"
        )
    if _is_late_trainer(job, request, programs):
        return (
            f"{_named(job, request)} was read to its end by {_listed(programs)} before this "
            "program started, on another host and soon after them: no rows are left. "
            f"{_remedy(job)} if it belongs to another run"
        )
    raise FailedPreconditionError(
        f"{_named(job, request)} was read to its end by {_listed(programs)}, and a job "
        f"delivers each repetition once; its last reader left {_ago(job, request)}. "
        f"{_remedy(job)}"
    )


def _is_read(state: DispatcherState, job: Job, request: OpenIteration) -> bool:
    readers = (state.iterations[i].readers for i in job.iterations.values())
    return any(reader not in request.silent for of_one in readers for reader in of_one)


def _is_of_the_run(job: Job, request: OpenIteration, programs: tuple[str, ...]) -> bool:
    """True if the reader's program existed before the job's last reader left.

    If the program has read the repetition itself, its dataset object must have existed by then.
    """
    program = program_of(request.reader_host, request.reader_pid)
    read_it = request.reader_pid and program in programs
    age_s = request.dataset_age_s if read_it else request.program_age_s
    idle_since_s = job.history.idle_since_s
    return idle_since_s is None or request.opened_s - age_s < idle_since_s


def _is_late_trainer(job: Job, request: OpenIteration, programs: tuple[str, ...]) -> bool:
    """True if the reader's program started too late for rows, beside trainers of other hosts."""
    if not programs or request.reader_host in map(host_of, programs):
        return False
    return request.opened_s - request.program_age_s < job.created_s + START_SKEW_S


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


class Collector:
    """Decides what to drop because nobody has read it for a while, at most since the start.

    Not thread-safe; the caller passes monotonic time. `timeout_s` None never collects.
    """

    def __init__(self, timeout_s: float | None, interval_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self.interval_s = interval_s
        self._checked_s = now_s
        # The facts that would drop what is unread, each with the time since when it is.
        self._since_s: dict[ev.Event, float] = {}

    def collect(self, state: DispatcherState, now_s: float) -> Decision:
        """Drops iterations and jobs that were unread for too long; nothing between two checks.

        Must be called more often than it checks, since it observes only then what is unread.
        """
        if self._timeout_s is None:
            return Decision(())
        self._since_s = {fact: self._since_s.get(fact, now_s) for fact in _unread(state)}
        if now_s - self._checked_s < self.interval_s:
            return Decision(())
        self._checked_s = now_s
        last_s = now_s - self._timeout_s
        return Decision(tuple(fact for fact, since_s in self._since_s.items() if since_s <= last_s))


def _unread(state: DispatcherState) -> Iterator[ev.Event]:
    """Yields the facts that would drop unfinished iterations and jobs without readers."""
    for iteration in state.iterations.values():
        if not iteration.readers and not iteration.finished:
            yield ev.IterationCollected(iteration_id=iteration.iteration_id)
    for job in state.jobs.values():
        if not count_readers(state, job):
            yield ev.JobDeleted(job_id=job.job_id)
