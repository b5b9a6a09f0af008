"""The place of a running function: which trainer runs it, and which input pipeline it builds.

Knows nothing of connections. Invariant: outside a scheduled function there is no place, and
asking for it is an error rather than a guess.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from pstrain.errors import FailedPreconditionError, InvalidArgumentError


class _Place(NamedTuple):
    trainer: int
    position: int


_place: ContextVar[_Place | None] = ContextVar("trainer_place", default=None)


@dataclass(frozen=True, slots=True)
class InputContext:
    """Which of how many input pipelines a dataset function builds.

    ``num_replicas_in_sync``: that of the strategy; one step learns from the batches of so many
    closures.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the batch size with which one step learns from ``global_batch_size`` rows.

        Raises ValueError if that is no multiple of the number of replicas.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise InvalidArgumentError(
                f"a global batch of {global_batch_size} does not divide over "
                f"{self.num_replicas_in_sync} replicas"
            )
        return global_batch_size // self.num_replicas_in_sync


def call_with_context(function: Callable[..., Any], context: InputContext) -> Any:
    """Calls a dataset function, which may take the context or nothing."""
    try:
        takes_context = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        takes_context = True
    return function(context) if takes_context else function()


def get_current_worker_index() -> int:
    """Returns the index of the trainer that runs this function; RuntimeError elsewhere."""
    place = _place.get()
    if place is None:
        raise FailedPreconditionError(
            "get_current_worker_index() has a meaning only inside a scheduled function"
        )
    return place.trainer


experimental_get_current_worker_index = get_current_worker_index  # as TensorFlow spells it


def current_position() -> int | None:
    """Returns the running trainer's position among all trainers, from 0; None elsewhere.

    Its index is higher than that if indices are missing in the cluster's job.
    """
    place = _place.get()
    return None if place is None else place.position


@contextmanager
def trainer_scope(index: int, position: int | None = None) -> Iterator[None]:
    """Marks the thread as running a closure of trainer ``index``, by default also its position."""
    token = _place.set(_Place(index, index if position is None else position))
    try:
        yield
    finally:
        _place.reset(token)
