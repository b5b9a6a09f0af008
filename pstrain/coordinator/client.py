"""ClusterCoordinator: what a training program holds to run functions on trainers.

Turns functions and arguments into closures and results into RemoteValues; which closure runs
where is the scheduler's business. Invariant: one coordinator per strategy.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import dataservice
from dataservice.runtime.arguments import (
    check_callable,
    integer_at_least,
    limit_s,
    path_of,
    positive,
)
from dataservice.runtime.ending import end_with_program
from pstrain.consistency import Sync
from pstrain.coordinator.functions import KnownFunctions
from pstrain.coordinator.join_progress import Report
from pstrain.coordinator.options import (
    QUEUE_CAPACITY,
    CoordinatorOptions,
    check_manager,
    check_options,
)
from pstrain.coordinator.packing import Packer
from pstrain.coordinator.parts import make_parts
from pstrain.coordinator.per_worker import IteratorsInUse, PerWorkerDataset, PerWorkerIterator
from pstrain.coordinator.recovering import ServerRecovery
from pstrain.coordinator.remote_value import RemoteValue, fetched
from pstrain.coordinator.tracing import RUNS_MAX
from pstrain.coordinator.trainer_stats import TrainerTable
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.replica import call_arguments
from pstrain.strategy import ParameterServerStrategy
from pstrain.trainer.outlasting import never

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager

Given = ParamSpec("Given")
Result = TypeVar("Result")


class ClusterCoordinator:
    """Schedules functions on the trainers of a strategy's cluster. Thread-safe.

    A second coordinator of the same strategy is the first one, whose options it has to take; a new
    one where the first ``is_over``.
    ``closures_in_flight``: how many closures a trainer runs at a time: while one waits for its
    rows, the others compute; with more of them a step rests on older values. In rounds (``sync``)
    it is 1.
    ``checkpoint``: a CheckpointManager. When a parameter server is lost, everything goes back to
    its newest checkpoint by itself once the server was started again, and what closures have done
    since is done again, in rounds (``sync``) in the rounds that they made; without one, closures
    raise UnavailableError. Put the iterators that closures take elements of into that checkpoint,
    and all variables, for what it does not hold begins anew, as a warning says at the first save;
    ``fit`` does that itself. A closure that is done again may meet the end of the data where its
    first run had rows, for another trainer has them: a loop to the end is over once all trainers
    have met it, a variable was read, which waits for what is lost, and ``stats()["restores"]`` is
    what it was. ``trainer_timeout_s``: how long to wait while no trainer at all can be reached, or
    not the one that a closure needs, before UnavailableError.
    """

    def __new__(cls, strategy: ParameterServerStrategy, **_options: Any) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            kind = type(strategy)
            raise InvalidArgumentError(
                "ClusterCoordinator needs a pstrain.ParameterServerStrategy, got "
                f"{kind.__module__}.{kind.__qualname__}; the form in pstrain.v1 has no "
                "coordinator: its workers train in strategy.session()"
            )
        if strategy.coordinator is not None and strategy.coordinator.is_over:
            strategy.coordinator.close()
        return strategy.coordinator or super().__new__(cls)

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        *,
        closures_in_flight: int = 3,
        queue_capacity: int = QUEUE_CAPACITY,
        trainer_timeout_s: float = 300.0,
        checkpoint: CheckpointManager | None = None,
    ) -> None:
        options = CoordinatorOptions(closures_in_flight, queue_capacity, trainer_timeout_s)
        if checkpoint is not None:
            check_manager(checkpoint)
        if strategy.coordinator is self:
            self._options.check_asked_again(options)
            if checkpoint is not None:
                self.recover_from(checkpoint)
            return
        strategy.check_open()
        self._options = options
        self.strategy = strategy
        self._functions = KnownFunctions()
        self._iterators = IteratorsInUse()
        self._packer = Packer(strategy)
        parts = make_parts(strategy, options, self._functions.pickled)
        self._scheduler, self._links = parts.scheduler, parts.links
        self.recovery = ServerRecovery(
            strategy, parts.scheduler, self._iterators, parts.recovery, parts.leave
        )
        strategy.coordinator = self
        strategy.parameters.hold_closures = _while_alive(self.barrier, nullcontext)
        strategy.parameters.outlast = _while_alive(self.recovery.outlast, never)
        self._finalizer = weakref.finalize(self, parts.stop)
        end_with_program(self, lambda coordinator: coordinator._finalizer())
        if isinstance(strategy.consistency, Sync):
            parts.applier.start()
        if checkpoint is not None:
            self.recover_from(checkpoint)
        for link in self._links:
            link.start()

    # What help() shows, which is else that of __new__, without the names of options.
    __signature__ = inspect.signature(functools.partial(__init__, None))  # type: ignore[arg-type]

    def recover_from(self, manager: CheckpointManager) -> None:
        """What ``checkpoint=`` says, from now on; another manager takes the place of the first."""
        check_manager(manager)
        self.recovery.recover_from(manager)

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """Where a lost server takes everything back to."""
        return self.recovery.checkpoint

    @property
    def is_over(self) -> bool:
        """Whether it has met an error after which it runs nothing more, as of a lost server."""
        return self._scheduler.is_over

    @property
    def num_trainers(self) -> int:
        """Trainers in the cluster spec, reachable or not."""
        return len(self._links)

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
        """Queues ``fn(*args, **kwargs)`` for any trainer and returns at once.

        ``fn`` is sent once: what it captures is as it was at its first ``schedule``, but for the
        learning rate of an optimizer, which is as it is at each. A per-worker
        iterator among the arguments becomes the trainer's own. Blocks while the queue is full.
        Raises an error that an earlier closure ended with, and FailedPreconditionError after
        ``close``.

        A RemoteValue among the arguments, also inside lists, dicts and other objects, stands for
        its value: the closure starts once that is there, and waits in the queue until then. Where
        there is none, because the other closure failed or was cancelled, it ends with
        ClosureInputError, whose cause says why; ``join`` raises the error of the one that failed.
        In rounds (``sync``) those of the inputs are made of what is scheduled by then.

        A closure that took nothing and lets the end of its trainer's data out, as StopIteration or
        OutOfRangeError, runs on another trainer, whose reader may hold rows. It ends with
        OutOfRangeError where all live trainers are at their end, once what runs has ended: for a
        loop over data that end, that is when no row is left. One that is bound to a ``trainer``,
        had taken an element or made a part of its changes ends at once.

        ``trainer``: the index of the only one that may run it, as for tests and for what belongs to
        one machine. While that one is away the closure waits, in a queue of its own, so that others
        go on; after ``trainer_timeout_s`` it has failed with UnavailableError. The staleness that
        ``ssp`` bounds is that of other closures. In rounds (``sync``) it is refused: there the
        closures of a round go to the trainers in turn.

        ``deadline_s``: a closure that has not begun to commit so many seconds from now ends with
        DeadlineExceededError, and nothing of it is applied. That is the end its program has asked
        for: it concerns no other closure, and ``join`` does not raise it.

        ``priority``: of those that wait, closures of a higher one start first, and those of one
        priority in the order in which they could; so one starts never while there are always
        higher ones. Those at a trainer already, at most a fifth of a second of work for each that
        runs, are not overtaken. In rounds (``sync``), which take closures in their order, it is
        refused.
        """
        if not callable(fn):
            raise InvalidTypeError(f"schedule needs a function, got {type(fn).__name__}")
        if trainer is not None or deadline_s is not None or priority != 0:
            in_rounds = isinstance(self.strategy.consistency, Sync)
            indices = [link.index for link in self._links]
            check_options(trainer, priority, deadline_s, indices=indices, in_rounds=in_rounds)
        function = self._functions.find(fn, self._packer.function)
        arguments = call_arguments(args, kwargs)
        pickled = b""
        inputs: tuple[RemoteValue, ...] = ()
        if args or kwargs:
            pickled, inputs = self._packer.arguments(fn, arguments, self._scheduler)
        return self._scheduler.submit(
            function.id,
            pickled,
            (function, arguments),
            trainer,
            name=function.name,
            deadline_s=deadline_s,
            inputs=inputs,
            priority=priority,
        )

    def join(
        self,
        timeout: float | None = None,
        progress: Report | None = None,
        *,
        progress_interval_s: float = 1.0,
    ) -> None:
        """Blocks until all scheduled closures have ended; raises the first error among them.

        After ``timeout`` seconds: DeadlineExceededError (a TimeoutError), with nothing cancelled.
        ``progress`` is called in this thread with a :class:`JoinProgress`, once per
        ``progress_interval_s`` and when all have ended, before their errors are raised; ``print``
        will do. What it raises ends the wait, and nothing else.
        """
        positive(progress_interval_s, "progress_interval_s")
        check_callable("progress", progress, optional=True)
        left_s = limit_s(timeout)
        self._scheduler.wait_idle(left_s, progress, progress_interval_s)

    def done(self) -> bool:
        """True when nothing is queued or in flight; raises the first error of what has ended."""
        return self._scheduler.is_idle()

    def fetch(self, structure: Any, timeout: float | None = None) -> Any:
        """``structure`` with each RemoteValue in it replaced by its value. Blocks for them.

        After ``timeout`` seconds in all: DeadlineExceededError, naming the one that is missing.
        """
        return fetched(structure, timeout)

    def create_per_worker_dataset(
        self, dataset_fn: Any, *, first_epoch: int = 0
    ) -> PerWorkerDataset:
        """One dataset on each trainer: as given, or made by a function (of an InputContext).

        Each trainer reads all of it. They share the rows where a data service gives them out under
        one ``job_name``, and of what ``strategy.experimental_distribute_dataset`` has divided.
        The function runs on the trainers; what it raises surfaces as ClosureInputError of the
        closures that use the iterator. ``first_epoch``: of the first iterator.
        """
        if not callable(dataset_fn) and not isinstance(dataset_fn, dataservice.Dataset):
            raise InvalidArgumentError(
                "create_per_worker_dataset needs a Dataset or a function that makes one, got "
                f"{type(dataset_fn).__name__}"
            )
        return PerWorkerDataset(dataset_fn, self, first_epoch)

    def barrier(self) -> AbstractContextManager[None]:
        """Scope in which no closure runs: those that do end first, others wait.

        DeadlineExceededError where they take longer than ``config.transfer_timeout_s``.
        """
        return self._scheduler.holding.held(self.strategy.parameters.config.transfer_timeout_s)

    def positions(self, resource_id: str) -> Mapping[int, Any]:
        """How far each trainer's iterator is, once no closure runs."""
        timeout_s = self.strategy.parameters.config.transfer_timeout_s
        with self._scheduler.holding.held(timeout_s):
            return self._scheduler.holding.positions(resource_id, timeout_s)

    def drop_resource(self, resource_id: str) -> None:
        """Has every trainer close an iterator."""
        self._scheduler.drop_resource(resource_id)

    def live_trainers(self) -> frozenset[int]:
        """Indices of the trainers that are connected now."""
        return self._scheduler.live_trainers()

    def has_ready_trainer(self) -> bool:
        """Whether a trainer could run one more closure side by side with its own, and none waits.

        Others may have more than they run side by side.
        """
        return self._scheduler.has_ready_trainer(self._options.closures_in_flight)

    def stats(self) -> dict[str, int]:
        """Counts of closures waiting, running, ended in one way or another, run again; trainers."""
        return {**self._scheduler.counts(), "restores": self.recovery.restores}

    def trainer_stats(self) -> TrainerTable:
        """How each trainer does, and who is a straggler; printed, it is a table.

        Its runs' times, how many it finishes per second, how long it has been silent although it
        has work, how far it is ahead of the slowest.
        """
        return self._scheduler.trainer_table()

    @contextmanager
    def trace(self, path: str | os.PathLike[str], *, runs_max: int = RUNS_MAX) -> Iterator[None]:
        """Scope whose closures are written to ``path`` at its end, for ui.perfetto.dev.

        A JSON file of Chrome's trace events: when each waited, ran and committed, on which trainer;
        of the latest ``runs_max`` runs that end inside. The folder is made now if there is none.
        FailedPreconditionError where another trace is under way.
        """
        integer_at_least(runs_max, 1, "runs_max")
        folder = os.path.dirname(path_of(path, "the path of a trace"))
        os.makedirs(folder or os.curdir, exist_ok=True)
        trace = self._scheduler.begin_trace(runs_max)
        try:
            yield
        finally:
            self._scheduler.end_trace()
            trace.write(path)

    def close(self) -> None:
        """Cancels what has not ended and disconnects; the trainers go idle. Idempotent."""
        self._finalizer()
        if self.strategy.coordinator is self:
            self.strategy.coordinator = None
            self.strategy.parameters.hold_closures = nullcontext
            self.strategy.parameters.outlast = never

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a coordinator stays in its process: scheduled functions schedule no others"
        )

    def __repr__(self) -> str:
        if not getattr(self, "_finalizer", None) or not self._finalizer.alive:
            return "<ClusterCoordinator closed>"
        counts = self.stats()
        return (
            f"<ClusterCoordinator {len(self._links)} trainers, {len(self.live_trainers())} live; "
            f"closures: {counts['waiting']} waiting, {counts['running']} running, "
            f"{counts['finished']:,} finished>"
        )

    def note_iterator(self, iterator: PerWorkerIterator) -> None:
        """An iterator was made."""
        self._iterators.add(iterator)

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None:
        """Has every trainer make an iterator of (dataset, epoch, positions by trainer)."""
        self._scheduler.add_resource(resource_id, self._packer.dataset(source))


def _while_alive(
    method: Callable[Given, Result], otherwise: Callable[Given, Result]
) -> Callable[Given, Result]:
    """``method``, without keeping its object alive; ``otherwise`` once that is gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return (reference() or otherwise)(*args, **kwargs)

    return call
