"""The coordinator of a program without a cluster: it runs each function at once, in this process.

Knows no queue, and nothing that could be lost. Invariant: values, errors and ends of data reach the
program by the same calls, and in the same form, as those of a cluster's trainers.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

import dataservice
from dataservice.runtime.arguments import check_callable, limit_s, positive
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from dataservice.runtime.threads import wait_until
from pstrain.checkpoints.manager import CheckpointManager, check_manager
from pstrain.coordinator.join_progress import Meter, OnProgress
from pstrain.coordinator.options import (
    CLOSURES_IN_FLIGHT,
    QUEUE_CAPACITY,
    TRAINER_TIMEOUT_S,
    CoordinatorOptions,
    check_options,
)
from pstrain.coordinator.remote_value import RemoteValue, ended_value, fetched, holds_values
from pstrain.errors import (
    ClosureInputError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    UnimplementedError,
)
from pstrain.serialization import results
from pstrain.strategy.default import DEFAULT, DefaultStrategy
from pstrain.strategy.replica import call_arguments
from pstrain.trainer.context import InputContext, trainer_scope
from pstrain.trainer.epochs import Epochs

_COUNTS: Final = (
    *("waiting", "running", "finished", "failed", "cancelled"),
    *("trainers", "retries", "losses", "rounds", "dropped", "restores"),
)


class LocalCoordinator:
    """Runs scheduled functions in this process, so that one loop works with and without a cluster.

    Its methods are those of ``ClusterCoordinator``. Thread-safe.

    ``schedule`` runs the function before it returns, one after the other, so ``join`` waits only
    for those of other threads; an error is raised by the next ``schedule`` or ``join``, as on a
    cluster. Nothing is copied: a function sees its arguments, and what it captures, as they are,
    and what it has changed before it failed stays changed. Options that concern queues and trainers
    are checked, and have no effect.
    """

    num_trainers: Final = 1
    is_over: Final = False

    def __init__(
        self,
        strategy: DefaultStrategy | None = None,
        *,
        closures_in_flight: int = CLOSURES_IN_FLIGHT,
        queue_capacity: int = QUEUE_CAPACITY,
        trainer_timeout_s: float = TRAINER_TIMEOUT_S,
        checkpoint: CheckpointManager | None = None,
    ) -> None:
        CoordinatorOptions(closures_in_flight, queue_capacity, trainer_timeout_s)
        if strategy is not None and not isinstance(strategy, DefaultStrategy):
            kind = type(strategy)
            raise InvalidArgumentError(
                "LocalCoordinator needs the strategy of pstrain.get_strategy() outside of all "
                f"scopes, got {kind.__module__}.{kind.__qualname__}: ClusterCoordinator is for "
                "strategies of a cluster"
            )
        self.strategy = DEFAULT if strategy is None else strategy
        self.checkpoint: CheckpointManager | None = None
        if checkpoint is not None:
            self.recover_from(checkpoint)
        # Reentrant, because a function may schedule others.
        self._running = threading.RLock()
        self._counts = dict.fromkeys(_COUNTS, 0) | {"trainers": 1}
        self._error: Exception | None = None
        self._is_closed = False

    def recover_from(self, manager: CheckpointManager) -> None:
        """Sets ``checkpoint``; values in this process are not lost, so nothing returns to it."""
        check_manager("checkpoint", manager)
        self.checkpoint = manager

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        trainer: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
    ) -> RemoteValue:
        """Runs ``fn(*args, **kwargs)`` and returns its value, which has ended.

        RemoteValues in lists, tuples and dicts of the arguments stand for their values. The end of
        the data, as StopIteration too, becomes OutOfRangeError. First raises the error that an
        earlier function ended with, and FailedPreconditionError after ``close``.
        """
        if not callable(fn):
            raise InvalidTypeError(f"schedule needs a function, got {type(fn).__name__}")
        check_options(trainer, priority, deadline_s, indices=[0], in_rounds=False)
        arguments = call_arguments(args, kwargs)
        with self._running:
            if self._is_closed:
                raise FailedPreconditionError(
                    "the coordinator is closed; pstrain.LocalCoordinator() makes another one"
                )
            self._raise_error()
            return self._ended(fn, arguments)

    def _ended(self, fn: Callable[..., Any], arguments: Any) -> RemoteValue:
        """Runs a function and returns its end."""
        number = self._counts["finished"] + self._counts["failed"] + self._counts["running"]
        self._counts["running"] += 1
        value, error = None, None
        try:
            args, kwargs = _with_values(arguments, number)
            with trainer_scope(0):
                # As if it had travelled: tensors are arrays, and nothing aliases a variable.
                value = results.decode(results.encode(fn(*args, **kwargs)))
        except Exception as raised:
            error = _as_of_closure(raised)
            # One of a function that this one has scheduled came first.
            self._error = self._error or error
        finally:
            self._counts["running"] -= 1
        self._counts["finished" if error is None else "failed"] += 1
        return ended_value(number, value, error)

    @refuse_timeout_s("join")
    def join(
        self,
        timeout: float | None = None,
        progress: OnProgress | None = None,
        *,
        progress_interval_s: float = 1.0,
    ) -> None:
        """Raises the error of the function that failed, if one has.

        Waits only for a function that another thread has scheduled and that still runs; after
        ``timeout`` seconds raises DeadlineExceededError (a TimeoutError).
        """
        left_s = limit_s(timeout)
        positive(progress_interval_s, "progress_interval_s")
        check_callable("progress", progress, optional=True)
        if not wait_until(lambda wait_s: self._running.acquire(timeout=wait_s), left_s):
            raise DeadlineExceededError(
                f"a function that another thread has scheduled still runs after {timeout} s"
            )
        try:
            if progress is not None:
                progress(Meter(self._counts["finished"], 0.0).read(self.stats(), time.monotonic()))
            self._raise_error()
        finally:
            self._running.release()

    def done(self) -> bool:
        """True if no function runs in another thread; raises the error of one that failed."""
        if not self._running.acquire(blocking=False):
            return False
        try:
            self._raise_error()
        finally:
            self._running.release()
        return True

    @refuse_timeout_s("fetch")
    def fetch(self, structure: Any, timeout: float | None = None) -> Any:
        """Returns ``structure`` with each RemoteValue in it replaced by its value."""
        return fetched(structure, timeout)

    def create_per_worker_dataset(self, dataset_fn: Any, *, first_epoch: int = 0) -> Epochs:
        """Makes the dataset of this process: as given, or made by a function (of an InputContext).

        Each ``iter`` of it is the next epoch, beginning with ``first_epoch``.
        """
        if not callable(dataset_fn) and not isinstance(dataset_fn, dataservice.Dataset):
            raise InvalidArgumentError(
                "create_per_worker_dataset needs a Dataset or a function that makes one, got "
                f"{type(dataset_fn).__name__}"
            )
        return Epochs(dataset_fn, InputContext(), first_epoch)

    def barrier(self) -> AbstractContextManager[Any]:
        """Returns a scope in which no scheduled function runs in another thread."""
        return self._running

    def live_trainers(self) -> frozenset[int]:
        """Returns the index of this process, which is its only trainer."""
        return frozenset({0})

    def has_ready_trainer(self) -> bool:
        """Returns True: a function runs as soon as it is scheduled."""
        return True

    def stats(self) -> dict[str, int]:
        """Returns counts by the names of ``ClusterCoordinator.stats``."""
        return dict(self._counts)

    def trainer_stats(self) -> NoReturn:
        """Raises UnimplementedError, as :meth:`trace` does: there are no trainers to compare."""
        raise UnimplementedError(_NO_TRAINERS.format("trainer_stats()"))

    def trace(self, path: Any, **options: Any) -> NoReturn:  # noqa: ARG002
        """Raises UnimplementedError: a profiler shows what one process does."""
        raise UnimplementedError(_NO_TRAINERS.format("trace()"))

    def close(self) -> None:
        """Has ``schedule`` refuse further functions. Idempotent."""
        self._is_closed = True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a coordinator stays in its process")

    def __repr__(self) -> str:
        finished = self._counts["finished"]
        return f"<LocalCoordinator of this process; closures: {finished:,} finished>"

    def _raise_error(self) -> None:
        with self._running:
            error, self._error = self._error, None
        if error is not None:
            raise error.with_traceback(None)


_RAISED: Final = "Raised in a scheduled function:"
_NO_TRAINERS: Final = (
    "{} watches the trainers of a cluster, and here one process runs everything: leave it out, or "
    "profile the process"
)


def _with_values(arguments: Any, number: int) -> Any:
    """Returns arguments with the values of RemoteValues; ClosureInputError if one has none."""
    if not holds_values(arguments):
        return arguments
    try:
        return fetched(list(arguments))
    except Exception as error:
        raise ClosureInputError(
            f"closure {number} needs the value of another, which has none: "
            f"{type(error).__name__}: {error}"
        ) from error


def _as_of_closure(raised: Exception) -> Exception:
    """Returns the error of a closure, with the traceback as a note, as of one that travelled."""
    error = raised
    if isinstance(raised, StopIteration):
        error = OutOfRangeError("the dataset is exhausted (in this process)")
    # A dataset that cannot be made, and fetch(), raise the same object again and again: a note of
    # each time would hold all notes before it.
    if not any(note.startswith(_RAISED) for note in getattr(error, "__notes__", ())):
        trace = "".join(traceback.format_exception(raised)).rstrip()
        error.add_note(f"{_RAISED}\n{trace}")
    return error
