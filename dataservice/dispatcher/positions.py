"""Decisions about saved positions: what a reader saves, and what loading a position means.

Pure, like `decide`. Rules: a new iteration begins after what the position says was consumed. An
existing iteration gives way to a position if nobody reads it, or none of its readers has consumed a
row, because the position is what the training knows. An iteration that is being read does not give
way, since the position may not count what its readers got.
"""

from __future__ import annotations

from dataclasses import replace

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Iteration, Job
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import OpenIteration, PositionAnswer
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from dataservice.ranges import Consumed
from dataservice.vocabulary import ANY_DIVISION, IterationId, ReaderId


def describe(iteration: Iteration) -> PositionAnswer:
    """Answers what departed readers have consumed, and which readers there are.

    UnimplementedError for an iteration without windows, UnavailableError while saved positions have
    yet to be loaded: the processes that load them do so at about the same time.
    """
    if iteration.windows is None and iteration.finished and not iteration.tasks:
        # A recalled iteration: it was retired and has nothing left for its late readers.
        return PositionAnswer(Consumed(), tuple(iteration.readers))
    if iteration.windows is None:
        raise UnimplementedError(
            "the dispatcher counts no rows of this job: only ShardingPolicy.DYNAMIC gives readers "
            "of one job positions that others can go on from; distribute with it"
        )
    missing = iteration.resumption.missing() if iteration.resumption else ()
    if missing:
        raise UnavailableError(
            f"there is no position before those of {', '.join(missing)} are loaded too; load each "
            "state into an iterator of its own, or load dataservice.merge_states([state, ...]) of "
            "all of them into one iterator"
        )
    return PositionAnswer(iteration.windows.base(), tuple(iteration.readers))


def awaits_positions(iteration: Iteration) -> bool:
    """True while saved positions have yet to be loaded; until then nothing may be leased."""
    return iteration.resumption is not None and bool(iteration.resumption.missing())


def replaces_iteration(iteration: Iteration, request: OpenIteration) -> bool:
    """True if the request's position replaces the iteration, as it is abandoned or unused."""
    if request.position is None:
        return False
    if iteration.windows is None:
        # A recalled iteration, which has no windows, gives way once its late readers have left.
        return iteration.finished and not iteration.readers
    loaded = iteration.resumption.loaded_by.values() if iteration.resumption else ()
    if not iteration.readers.keys().isdisjoint(loaded):
        return False
    return not iteration.windows.is_in_use()


def replaces_job(state: DispatcherState, job: Job | None, request: OpenIteration) -> bool:
    """True if the job begins anew as well, with the dataset that has the position's seeds."""
    if job is None or request.position is None:
        return False
    others = (i for repetition, i in job.iterations.items() if repetition != request.repetition)
    return not any(state.iterations[iteration_id].readers for iteration_id in others)


def begin(request: OpenIteration, plan: WindowPlan | str | None) -> list[ev.Event]:
    """Returns the fact that a new iteration resumes from the request's position, if it has one."""
    position = request.position
    if position is None:
        return []
    if not isinstance(plan, WindowPlan):
        raise UnimplementedError(
            f"a position of windows cannot be loaded under ShardingPolicy.{request.policy.name}; "
            "distribute with ShardingPolicy.DYNAMIC"
        )
    _check_division(plan, position)
    return [_resumed(request.reader_id, request.iteration_id, position)]


def join(state: DispatcherState, iteration: Iteration, request: OpenIteration) -> list[ev.Event]:
    """Returns the fact that an existing iteration got one more position, or the same one again.

    UnavailableError, to be retried, while readers are there that must be gone before the load.
    FailedPreconditionError if only some of the position's origins are loaded already.
    """
    position = request.position
    if position is None or request.reader_id in iteration.readers:
        return []
    resumption = iteration.resumption
    if resumption is None:
        raise UnavailableError(_occupied(state, iteration, tuple(iteration.readers)))
    if iteration.windows is not None:
        _check_division(iteration.windows.plan, position)
    known = [origin for origin in position.origins if origin in resumption.loaded_by]
    living = {resumption.loaded_by[o] for o in known} & set(iteration.readers)
    if living:
        raise UnavailableError(_occupied(state, iteration, tuple(sorted(living))))
    if len(known) == len(position.origins):
        again = replace(position, consumed=Consumed(), peers=())
        return [_resumed(request.reader_id, iteration.iteration_id, again)]
    if not known and not resumption.missing():
        # The position is newer than the iteration, whose readers have yet to be noticed as lost.
        raise UnavailableError(_occupied(state, iteration, tuple(iteration.readers)))
    if known:
        raise FailedPreconditionError(
            f"repetition {iteration.repetition} of job {_name_of(state, iteration)} went on from "
            f"the positions of {', '.join(sorted(resumption.loaded_by))} already; load either the "
            "positions of all readers or what merge_states() made of them, each once, or delete "
            "the job with `dataservice jobs delete`"
        )
    return [_resumed(request.reader_id, iteration.iteration_id, position)]


def _resumed(
    reader_id: ReaderId, iteration_id: IterationId, position: SavedPosition
) -> ev.IterationResumed:
    return ev.IterationResumed(
        iteration_id=iteration_id,
        reader_id=reader_id,
        origins=position.origins,
        peers=position.peers,
        consumed=position.consumed,
    )


def _check_division(plan: WindowPlan, position: SavedPosition) -> None:
    if position.division not in (plan.division, ANY_DIVISION):
        raise InvalidArgumentError(
            "the position counts other windows than there are now: files, their sizes, their "
            "order, a shuffle or the number of passes changed since it was saved. Read the same "
            "files with the same dataset, or begin anew without the position"
        )


def _name_of(state: DispatcherState, iteration: Iteration) -> str:
    return state.jobs[iteration.job_id].name or iteration.job_id


def _occupied(state: DispatcherState, iteration: Iteration, readers: tuple[ReaderId, ...]) -> str:
    named = ", ".join(
        f"{reader} ({iteration.readers[reader].host}, process {iteration.readers[reader].pid})"
        for reader in readers
    )
    return (
        f"repetition {iteration.repetition} of job {_name_of(state, iteration)} is still read by "
        f"{named}, so it cannot go back to a saved position; close these iterators, wait until "
        "their silence counts as loss (--client-timeout-ms), or delete the job with "
        "`dataservice jobs delete`"
    )
