"""Decisions about jobs with a cross-trainer cache: what such a job must be.

Pure, like `decide`. Rule: the trainers of such a job read one endless sequence per worker, so it
has a name by which they find it, one repetition, and no order or rounds among its readers.
"""

from __future__ import annotations

from dataservice.dispatcher.requests import OpenIteration
from dataservice.dispatcher.state import Dataset
from dataservice.errors import InvalidArgumentError
from dataservice.vocabulary import INFINITE_CARDINALITY, ShardingPolicy


def check_cached(request: OpenIteration, dataset: Dataset) -> None:
    """InvalidArgumentError for a request with a cache that cannot be served."""
    if not request.options.cross_trainer_cache:
        return
    if request.job_name is None:
        raise InvalidArgumentError("a cross-trainer cache requires named jobs; give a job_name")
    if request.policy is ShardingPolicy.DYNAMIC:
        raise InvalidArgumentError(
            "a cross-trainer cache cannot be read under DYNAMIC; use ShardingPolicy.OFF"
        )
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
            f"job {request.job_name} has a cross-trainer cache, of which repetition "
            f"{request.repetition} was asked for: its only repetition is endless. Go on with the "
            "iterator that there is, or iterate over a dataset made anew"
        )
