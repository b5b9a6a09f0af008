"""ClusterCoordinator: the object with which a training program runs functions on trainers.

Turns functions and arguments into closures, and results into RemoteValues. Must not know which
closure runs where: the scheduler decides that. Invariant: one coordinator per strategy.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, ParamSpec, TypeVar

import dataservice
from dataservice.runtime.arguments import (
    check_callable,
    integer_at_least,
    limit_s,
    path_of,
    positive,
)
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from pstrain.checkpoints.manager import CheckpointManager, check_manager
from pstrain.consistency import Sync
from pstrain.coordinator.assembly import assemble
from pstrain.coordinator.functions import KnownFunctions
from pstrain.coordinator.join_progress import OnProgress
from pstrain.coordinator.options import (
    CLOSURES_IN_FLIGHT,
    QUEUE_CAPACITY,
    TRAINER_TIMEOUT_S,
    CoordinatorOptions,
    check_options,
)
from pstrain.coordinator.packing import NO_ARGUMENTS, Packer
from pstrain.coordinator.per_worker import IteratorsInUse, PerWorkerDataset, PerWorkerIterator
from pstrain.coordinator.remote_value import RemoteValue, fetched
from pstrain.coordinator.tracing import RUNS_MAX
from pstrain.coordinator.trainer_stats import TrainerTable
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.strategy.default import DefaultStrategy
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.strategy.replica import call_arguments
from pstrain.trainer.consistent_reads import always_goes_on, never_restored

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _OnePerStrategy(type):
    """The class of ClusterCoordinator: makes one at a time, so that two threads get the same."""

    _making = threading.RLock()

    def __call__(cls, *args: Any, **options: Any) -> Any:
        with cls._making:
            return super().__call__(*args, **options)


class ClusterCoordinator(metaclass=_OnePerStrategy):
    """Schedules functions on the trainers of a strategy's cluster. Thread-safe.

    Making another coordinator of the same strategy returns the first one, and may give no other
    options; if the first one ``is_over``, it is closed and a new one is made.
    :class:`LocalCoordinator` does the same in one process, without a cluster.

    ``closures_in_flight``: how many closures a trainer runs at a time. While one waits for its
    rows, the others compute; the more there are, the older are the values that a step rests on. In
    rounds (``sync``) it is 1.
    ``trainer_timeout_s``: how long to wait, before UnavailableError, while no trainer at all can be
    reached, or not the one that a closure needs.
    ``checkpoint``: a CheckpointManager. Once a lost parameter server was started again, everything
    returns to its newest checkpoint by itself, and the closures that have ended since then run
    again, in rounds (``sync``) in the same rounds as before. Without a checkpoint, closures raise
    UnavailableError. The checkpoint should hold all variables and the iterators that closures take
    elements of, because what it does not hold begins anew, as a warning says at the first save;
    ``fit`` adds them itself. A closure that runs again may meet the end of the data where its first
    run had rows, because another trainer has them. A loop to the end of the data is therefore over
    once all trainers have met the end, a variable was read (a read waits for a restore), and
    ``stats()["restores"]`` is unchanged.
    """

    def __new__(cls, strategy: ParameterServerStrategy, **_options: Any) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            kind = type(strategy)
            remedy = (
                "without a cluster pstrain.LocalCoordinator() runs the same loop in this process; "
                "pstrain.LocalCluster() starts a cluster on this machine"
                if kind is DefaultStrategy
                else "the form in pstrain.v1 has no coordinator: its workers train in "
                "strategy.session()"
            )
            raise InvalidArgumentError(
                "ClusterCoordinator needs a pstrain.ParameterServerStrategy, got "
                f"{kind.__module__}.{kind.__qualname__}; {remedy}"
            )
        if strategy.coordinator is not None and strategy.coordinator.is_over:
            strategy.coordinator.close()
        return strategy.coordinator or super().__new__(cls)

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        *,
        closures_in_flight: int = CLOSURES_IN_FLIGHT,
        queue_capacity: int = QUEUE_CAPACITY,
        trainer_timeout_s: float = TRAINER_TIMEOUT_S,
        checkpoint: CheckpointManager | None = None,
    ) -> None:
        options = CoordinatorOptions(closures_in_flight, queue_capacity, trainer_timeout_s)
        if checkpoint is not None:
            check_manager("checkpoint", checkpoint)
        if strategy.coordinator is self:
            self._options.check_same(options)
            if checkpoint is not None:
                self.recover_from(checkpoint)
            return
        strategy.check_open()
        self._options = options
        self.strategy = strategy
        self._functions = KnownFunctions()
        self._iterators = IteratorsInUse()
        self._packer = Packer(strategy)
        parts = assemble(strategy, options, self._functions.pickled, self._iterators)
        self._scheduler, self._links, self.recovery = parts.scheduler, parts.links, parts.recovery
        strategy.coordinator = self
        self._guard_values()
        self._finalizer = weakref.finalize(self, parts.stop)
        end_with_program(self, lambda coordinator: coordinator._finalizer())
        if isinstance(strategy.consistency, Sync):
            parts.applier.start()
        if checkpoint is not None:
            self.recover_from(checkpoint)
        for link in self._links:
            link.start()

    def _guard_values(self) -> None:
        """Has the program's reads wait for restores, and its saves for closures in flight."""
        parameters, rollback = self.strategy.parameters, self._scheduler.rollback
        parameters.hold_closures = _while_alive(self.barrier, nullcontext)
        parameters.wait_restored = _while_alive(self.recovery.wait_restored, never_restored)
        parameters.check_goes_on = _while_alive(rollback.check_goes_on, always_goes_on)

    # The signature that help() shows; that of __new__ lacks the names of options.
    __signature__ = inspect.signature(functools.partial(__init__, None))  # type: ignore[arg-type]

    def recover_from(self, manager: CheckpointManager) -> None:
        """Sets ``checkpoint=`` from now on; ``manager`` takes the place of an earlier one."""
        check_manager("checkpoint", manager)
        self.recovery.recover_from(manager)

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """The checkpoints to which everything returns after the loss of a parameter server."""
        return self.recovery.checkpoint

    @property
    def is_over(self) -> bool:
        """True if an error, such as a lost server, has ended the scheduling for good."""
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

        ``fn`` is sent once: what it captures stays as it was at its first ``schedule``, except what
        ``compile`` sets, and an optimizer's learning rate. A per-worker iterator among the
        arguments becomes the trainer's own. Blocks while the queue is full. Raises an error that an
        earlier closure ended with, and FailedPreconditionError after ``close``.

        A RemoteValue among the arguments, also inside lists, dicts and other objects, stands for
        its value: the closure waits in the queue until the value is there. If there is no value,
        because the other closure failed or was cancelled, this one ends with ClosureInputError,
        whose cause says why; ``join`` raises the error of the closure that failed. In rounds
        (``sync``) the rounds of the inputs wait for nothing that is scheduled after this call.

        A closure that took no element and raises the end of its trainer's data (StopIteration or
        OutOfRangeError) runs on another trainer, whose reader may still hold rows. It ends with
        OutOfRangeError once all live trainers are at their end and nothing runs: a loop over finite
        data ends when no row is left. Meanwhile closures with that iterator among their arguments
        go to trainers that have not met its end. A closure that is bound to a ``trainer``, has
        taken an element or has committed a part of its changes ends at once.

        ``trainer``: the index of the only trainer that may run the closure, for tests and for what
        belongs to one machine. While that trainer is away the closure waits, in a queue of its own,
        so that others go on; after ``trainer_timeout_s`` it fails with UnavailableError. It does
        not count in the staleness that ``ssp`` bounds. In rounds (``sync``) it is refused, because
        there the closures of a round go to the trainers in turn.

        ``deadline_s``: a closure that has not begun to commit within so many seconds from now ends
        with DeadlineExceededError, and nothing of it is applied. As its program has asked for that
        end, no other closure is affected, and ``join`` waits for its run but does not raise it.

        ``priority``: waiting closures of a higher priority start first; those of one priority in
        the order in which they became ready. A closure may wait for as long as higher ones keep
        coming. Closures that are at a trainer already, at most a fifth of a second of work for each
        that runs, are not overtaken. In rounds (``sync``), which take closures in their order, it
        is refused.
        """
        if not callable(fn):
            raise InvalidTypeError(f"schedule needs a function, got {type(fn).__name__}")
        if trainer is not None or deadline_s is not None or priority != 0:
            in_rounds = isinstance(self.strategy.consistency, Sync)
            indices = [link.index for link in self._links]
            trainer, priority = check_options(
                trainer, priority, deadline_s, indices=indices, in_rounds=in_rounds
            )
        found = self._functions.find(fn, self._packer.function)
        arguments = call_arguments(args, kwargs)
        packed = NO_ARGUMENTS
        if args or kwargs:
            packed = self._packer.arguments(fn, arguments, self._scheduler)
        return self._scheduler.submit(
            found.function.id,
            packed.pickled,
            (found, arguments, packed.referred),
            trainer,
            name=found.function.name,
            deadline_s=deadline_s,
            inputs=packed.inputs,
            priority=priority,
            iterators=packed.iterators,
        )

    @refuse_timeout_s("join")
    def join(
        self,
        timeout: float | None = None,
        progress: OnProgress | None = None,
        *,
        progress_interval_s: float = 1.0,
    ) -> None:
        """Blocks until all scheduled closures have ended; raises the first error among them.

        After ``timeout`` seconds raises DeadlineExceededError (a TimeoutError); cancels nothing.
        ``progress``, for example ``print``, is called in this thread with a :class:`JoinProgress`,
        once per ``progress_interval_s`` and when all closures have ended, before their errors are
        raised. An exception that ``progress`` raises ends this wait, and nothing else.
        """
        positive(progress_interval_s, "progress_interval_s")
        check_callable("progress", progress, optional=True)
        left_s, began_s = limit_s(timeout), time.monotonic()
        self._scheduler.wait_idle(left_s, progress, progress_interval_s)
        if left_s is not None:
            left_s -= time.monotonic() - began_s
        self.strategy.parameters.drop_ended(left_s)

    def done(self) -> bool:
        """True if nothing is queued or in flight; raises the first error of closures that ended."""
        return self._scheduler.is_idle()

    @refuse_timeout_s("fetch")
    def fetch(self, structure: Any, timeout: float | None = None) -> Any:
        """Returns ``structure`` with each RemoteValue in it replaced by its value. Blocks.

        After ``timeout`` seconds in all raises DeadlineExceededError, which names the closure whose
        value is missing.
        """
        return fetched(structure, timeout)

    def create_per_worker_dataset(
        self, dataset_fn: Any, *, first_epoch: int = 0
    ) -> PerWorkerDataset:
        """Makes one dataset on each trainer: as given, or made by a function (of an InputContext).

        Each trainer reads all of its dataset; a Dataset that shuffles without a seed it shuffles in
        an order of its own. The trainers share the rows only if a data service gives them out under
        one ``job_name``, or if ``strategy.experimental_distribute_dataset`` has divided the
        dataset. The function runs on the trainers; if it raises, closures that use
        the iterator end with ClosureInputError. ``first_epoch``: the epoch of the first iterator.
        """
        if not callable(dataset_fn) and not isinstance(dataset_fn, dataservice.Dataset):
            raise InvalidArgumentError(
                "create_per_worker_dataset needs a Dataset or a function that makes one, got "
                f"{type(dataset_fn).__name__}"
            )
        return PerWorkerDataset(dataset_fn, self, first_epoch)

    def barrier(self) -> AbstractContextManager[None]:
        """Returns a scope in which no closure runs: running closures end first, others wait.

        Raises DeadlineExceededError if they take longer than ``config.transfer_timeout_s``.
        """
        return self._scheduler.barrier.held(self.strategy.parameters.config.transfer_timeout_s)

    def positions(self, resource_id: str) -> Mapping[int, Any]:
        """Returns the position of each trainer's iterator; waits until no closure runs."""
        timeout_s = self.strategy.parameters.config.transfer_timeout_s
        with self._scheduler.barrier.held(timeout_s):
            return self._scheduler.barrier.positions(resource_id, timeout_s)

    def drop_resource(self, resource_id: str) -> None:
        """Has every trainer close its iterator."""
        self._scheduler.drop_resource(resource_id)

    def live_trainers(self) -> frozenset[int]:
        """Returns the indices of trainers that are connected, or whose loss is not settled yet."""
        return self._scheduler.live_trainers()

    def has_ready_trainer(self) -> bool:
        """True if some trainer could start one more closure at once, and no closure waits for any.

        Other trainers may hold more closures than they run side by side.
        """
        return self._scheduler.has_ready_trainer(self._options.closures_in_flight)

    def stats(self) -> dict[str, int]:
        """Returns counts: of closures by state, of retries, losses, rounds, restores, trainers."""
        return {**self._scheduler.counts(), "restores": self.recovery.restores}

    def trainer_stats(self) -> TrainerTable:
        """Returns the performance of each trainer, and which are stragglers; prints as a table.

        For each trainer: the times of its runs, how many it finishes per second, how long it has
        been silent although it has work, how far it is ahead of the slowest.
        """
        return self._scheduler.trainer_table()

    @contextmanager
    def trace(self, path: str | os.PathLike[str], *, runs_max: int = RUNS_MAX) -> Iterator[None]:
        """Opens a scope whose closures are written to ``path`` at its end, for ui.perfetto.dev.

        The file holds Chrome's trace events as JSON: when each closure waited, ran and committed,
        and on which trainer, for the latest ``runs_max`` runs that end inside the scope. The folder
        is made at entry. Raises FailedPreconditionError if another trace is under way.
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
        """Cancels all closures that have not ended and disconnects the trainers. Idempotent."""
        self._finalizer()
        if self.strategy.coordinator is self:
            self.strategy.coordinator = None
            self.strategy.parameters.hold_closures = nullcontext
            self.strategy.parameters.wait_restored = never_restored
            self.strategy.parameters.check_goes_on = always_goes_on

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
        """Registers an iterator that was made."""
        self._iterators.add(iterator)

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None:
        """Has every trainer make an iterator from (dataset, epoch, positions by trainer)."""
        self._scheduler.add_resource(resource_id, *self._packer.dataset(source))


def _while_alive(
    method: Callable[Given, Result], otherwise: Callable[Given, Result]
) -> Callable[Given, Result]:
    """Wraps ``method`` without keeping its object alive; calls ``otherwise`` once that is gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return (reference() or otherwise)(*args, **kwargs)

    return call
