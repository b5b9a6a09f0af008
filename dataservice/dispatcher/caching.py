"""Decisions about jobs with a cross-trainer cache: which jobs may have one, and what it means.

Pure, like `decide`. Rules: the trainers of such a job read one endless sequence per worker, so the
job has a name by which they find it, one repetition, and neither order nor rounds. Windows go to
whichever worker asks, for all trainers, and count as done at once: delivery is at most once.
"""

from __future__ import annotations

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.requests import OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import InvalidArgumentError
from dataservice.vocabulary import INFINITE_CARDINALITY


def check_cached(request: OpenIteration, dataset: ev.DatasetRegistered) -> None:
    """Raises InvalidArgumentError if the request asks for a cache that cannot be served."""
    if not request.options.cross_trainer_cache:
        return
    if request.job_name is None:
        raise InvalidArgumentError("a cross-trainer cache requires named jobs; give a job_name")
    if request.options.num_consumers or request.options.ordered:
        raise InvalidArgumentError(
            "a cross-trainer cache excludes coordinated reads and ordered=True"
        )
    if dataset.cardinality != INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            "a cross-trainer cache requires the input dataset to be infinite, got cardinality "
            f"{dataset.cardinality}; end the dataset with repeat()"
        )
    if request.repetition:
        raise InvalidArgumentError(
            f"job {request.job_name} has a cross-trainer cache, and so one repetition "
            f"without an end: there is no repetition {request.repetition}. Keep using the "
            "first iterator, or iterate over a new dataset object"
        )


def is_cached(state: DispatcherState, iteration: Iteration) -> bool:
    """True if all trainers share what a worker makes of its windows."""
    return state.jobs[iteration.job_id].options.cross_trainer_cache
