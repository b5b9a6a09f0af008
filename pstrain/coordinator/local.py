"""The coordinator of a program without a cluster: it runs each function at once, in this process.

Knows no queue, and nothing that could be lost. Invariant: values, errors and ends of data reach the
program by the same calls, and in the same form, as those of a cluster's trainers.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn

import dataservice
from dataservice.runtime.arguments import check_callable, limit_s, positive
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from dataservice.runtime.threads import wait_until
from pstrain.checkpoints.manager import CheckpointManager, check_manager
from pstrain.coordinator.end_errors import is_unwanted
from pstrain.coordinator.join_progress import Meter, OnProgress
from pstrain.coordinator.local_inputs import with_values
from pstrain.coordinator.options import (
    CLOSURES_IN_FLIGHT,
    QUEUE_CAPACITY,
    TRAINER_TIMEOUT_S,
    CoordinatorOptions,
    check_options,
)
from pstrain.coordinator.remote_value import RemoteValue, ended_value, fetched
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
from pstrain.variables.closure_gate import CLOSURES
from pstrain.variables.parameters import closure_scope

_COUNTS: Final = (
    *("waiting", "running", "finished", "failed", "cancelled"),
    *("trainers", "retries", "losses", "rounds", "dropped", "restores"),
)


class LocalCoordinator:
    """Runs scheduled functions in this process, so that one loop works with and without a cluster.

    Its methods are those of ``ClusterCoordinator``. Thread-safe.

    ``schedule`` runs the function before it returns, one after the other, so ``join`` waits only
    for those of other threads; an error is raised by the next ``schedule`` or ``join``, as on a
    cluster. Nothing is copied but arguments that hold a RemoteValue: a function sees its arguments,
    and what it captures, as they are, and what it has changed before it failed stays changed.
    Options that concern queues and trainers are checked, and have no effect.
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
        self._counting = threading.Lock()
        self._numbers = itertools.count()
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

        A RemoteValue among the arguments, also inside lists, dicts and other objects, stands for
        its value; what holds one is copied. The end of the data, as StopIteration too, becomes
        OutOfRangeError. First raises the error that an earlier function ended with, and
        FailedPreconditionError after ``close``. ``deadline_s``: a function that has not begun after
        so many seconds, because one of another thread runs, never runs and ends with
        DeadlineExceededError, which ``join`` does not raise. One that has begun runs to its end,
        because its changes are made at once.
        """
        if not callable(fn):
            raise InvalidTypeError(f"schedule needs a function, got {type(fn).__name__}")
        check_options(trainer, priority, deadline_s, indices=[0], in_rounds=False)
        arguments = call_arguments(args, kwargs)
        with self._turn(deadline_s) as has_turn:
            if not has_turn:
                return self._overdue(fn, deadline_s)
            if self._is_closed:
                raise FailedPreconditionError(
                    "the coordinator is closed; pstrain.LocalCoordinator() makes another one"
                )
            self._raise_error()
            return self._ended(fn, arguments)

    @contextmanager
    def _turn(self, deadline_s: float | None) -> Iterator[bool]:
        """Opens a scope in which this thread may run a function; yields False if it came late.

        Waits for the functions and the saves of other threads, at most ``deadline_s``.
        """
        end_s = None if deadline_s is None else time.monotonic() + deadline_s
        # First the gate: a thread inside of barrier() may still use this coordinator.
        with CLOSURES.running(deadline_s) as may_run:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not (may_run and self._acquire(left_s)):
                yield False
                return
            try:
                yield True
            finally:
                self._running.release()

    def _acquire(self, timeout_s: float | None) -> bool:
        return self._running.acquire(blocking=False) or wait_until(
            lambda wait_s: self._running.acquire(timeout=wait_s), timeout_s
        )

    def _overdue(self, fn: Callable[..., Any], deadline_s: float | None) -> RemoteValue:
        """Returns the end of a function that has not run. Its program has asked for that end."""
        with self._counting:
            self._counts["cancelled"] += 1
        name = getattr(fn, "__qualname__", type(fn).__name__)
        number = next(self._numbers)
        return ended_value(
            number,
            None,
            DeadlineExceededError(
                f"closure {number} ({name}) had not begun {deadline_s} s after it was scheduled, "
                "which was its deadline_s: nothing of it is applied"
            ),
        )

    def _ended(self, fn: Callable[..., Any], arguments: Any) -> RemoteValue:
        """Runs a function and returns its end."""
        number = next(self._numbers)
        try:
            args, kwargs = with_values(arguments, number)
        except ClosureInputError as raised:
            error: Exception = _as_of_closure(raised)
            if is_unwanted(error):
                with self._counting:
                    self._counts["cancelled"] += 1
                return ended_value(number, None, error)
            return self._failed(number, error)
        self._counts["running"] += 1
        try:
            with trainer_scope(0), closure_scope():
                # As if it had travelled: tensors are arrays, and nothing aliases a variable.
                value = results.decode(results.encode(fn(*args, **kwargs)))
        except Exception as raised:
            return self._failed(number, _as_of_closure(raised))
        finally:
            self._counts["running"] -= 1
        self._counts["finished"] += 1
        return ended_value(number, value, None)

    def _failed(self, number: int, error: Exception) -> RemoteValue:
        """Returns the end of a function with ``error``, which the next call raises."""
        # One of a function that this one has scheduled came first.
        self._error = self._error or error
        self._counts["failed"] += 1
        return ended_value(number, None, error)

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
        if not self._acquire(left_s):
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
        """Returns a scope in which no scheduled function runs in another thread of this process.

        ``Checkpoint.save`` enters it by itself.
        """
        return CLOSURES.quiet()

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
