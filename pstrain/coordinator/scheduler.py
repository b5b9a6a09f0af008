"""The scheduler: takes closures, has each run on a trainer, and tells the program how it ended.

What trainers say is heard by its base, `Hearing`. Decides nothing itself, and knows neither gRPC
nor what a closure computes. Invariant: every closure that was submitted ends: with a value, an
error, or CancelledError.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from pstrain.coordinator import decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.end_errors import end_without_input
from pstrain.coordinator.hearing import Hearing
from pstrain.coordinator.holding import Holding
from pstrain.coordinator.join_progress import Meter, Report
from pstrain.coordinator.orders import Closure
from pstrain.coordinator.redoing import Redoing
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.tracing import Trace
from pstrain.coordinator.trainer_stats import TrainerTable
from pstrain.coordinator.waiting import Waiting
from pstrain.coordinator.whereabouts import whereabouts
from pstrain.errors import FailedPreconditionError


class Scheduler(Hearing):
    """Thread-safe. Of what programs ask, ``submit``, ``wait_idle`` and ``cancel`` block.

    ``ids``: of its closures, ascending. ``capacity``: how many closures wait at most for any
    trainer, and for each that closures are bound to. ``holding`` is its part in saves, ``redoing``
    that in restores.
    """

    def __init__(
        self, core: Core, *, ids: Iterator[int], capacity: int, trainer_timeout_s: float
    ) -> None:
        super().__init__(core, Waiting(core, trainer_timeout_s))
        self._ids = ids
        # In rounds, one must have room to begin.
        self._capacity = max(capacity, core.state.trainers_expected)
        self.holding = Holding(core, self.waiting)
        self.redoing = Redoing(core, self.waiting)

    # -- the user's side

    def submit(
        self,
        function_id: str,
        pickled_arguments: bytes,
        arguments: object,
        trainer: int | None = None,
        *,
        name: str = "",
        deadline_s: float | None = None,
        inputs: tuple[RemoteValue, ...] = (),
        priority: int = 0,
    ) -> RemoteValue:
        """Queues a closure; blocks while its queue is full; raises errors of earlier ones.

        ``trainer``: the only one that may run it; those that wait for one have their own queue.
        ``deadline_s``: the time from now that it has to begin its commit. ``inputs``: values that
        it runs with, of this scheduler where they are not there yet. ``priority``: higher first.
        """
        core = self._core
        began_s = time.monotonic() if deadline_s is not None else 0.0
        with core.changed:
            if core.state.is_idle and not core.outboxes:
                self.waiting.note_alone()
            if not self._has_room(trainer):
                self.waiting.until(lambda: self._has_room(trainer), None, "room in the queue")
            self._check_open()
            number = next(self._ids)
            core.next_id = number + 1
            closure = Closure(
                number,
                function_id,
                pickled_arguments,
                arguments,
                RemoteValue(number, core.changed, self),
                trainer,
                name,
                deadline_s,
                inputs,
                priority,
            )
            core.closures[number] = closure
            if deadline_s is not None:
                core.deadlines.add(number, began_s + deadline_s)
            self._queue(closure)
            self._raise_errors(None)
            core.go_on()
            return closure.value

    def _check_open(self) -> None:
        if self._core.fatal is not None:
            raise self._core.fatal.with_traceback(None)
        if self._core.stopped:
            raise FailedPreconditionError(
                "the coordinator is closed; ps.ClusterCoordinator(strategy) makes another one"
            )

    def _has_room(self, trainer: int | None) -> bool:
        """Those that wait for one trainer, which may be away, take no room of others."""
        core = self._core
        if trainer is not None:
            return core.state.waiting_for(trainer) < self._capacity
        return len(core.closures) - len(core.state.bound) < self._capacity

    def _queue(self, closure: Closure) -> None:
        """In rounds, those of its inputs wait for nothing that is scheduled later."""
        core = self._core
        missing = tuple(value.closure for value in closure.inputs if not value.has_ended)
        if missing:
            core.seal(max(missing) + 1)
        without = end_without_input(closure) if closure.inputs else None
        core.apply(
            decide.schedule(
                core.state,
                closure.id,
                closure.trainer,
                missing,
                without,
                priority=closure.priority,
            )
        )

    def wait_idle(
        self, timeout_s: float | None, report: Report | None = None, interval_s: float = 1.0
    ) -> None:
        """Blocks until every closure has ended, then raises their errors, if any.

        ``report`` is called here, with no lock held, every ``interval_s`` and at the end.
        """
        core, now_s = self._core, time.monotonic()
        if not core.state.is_idle:
            self.holding.check_not_held()
        deadline_s = None if timeout_s is None else now_s + timeout_s
        meter = Meter(core.state.finished_count, now_s)
        is_idle = False
        while not is_idle:
            pause_at_s = None if report is None else time.monotonic() + interval_s
            with core.changed:
                core.seal(core.next_id)
                is_idle = self.waiting.until(
                    lambda: core.state.is_idle, deadline_s, "scheduled closures to end", pause_at_s
                )
            if report is not None:
                report(meter.read(self.counts(), time.monotonic()))
        with core.changed:
            self._raise_errors(deadline_s)

    def is_idle(self) -> bool:
        """Raises errors of ended closures (once those in flight have ended)."""
        core = self._core
        with core.changed:
            core.seal(core.next_id)
            self._raise_errors(None)
            return core.state.is_idle

    def cancel(self, closure: int, timeout_s: float | None) -> None:
        """Ends a closure unless it has begun to commit; blocks until that is known."""
        core = self._core
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with core.changed:
            known = core.closures.get(closure)
            if known is None or known.value.has_ended:
                return
            core.cancel(closure, ev.Reason.ASKED)
            self.waiting.until(
                lambda: closure not in core.state.cancelling or known.value.has_ended,
                deadline_s,
                f"its trainer to say whether {known.label} can be cancelled",
            )

    def awaited(self, closure: int, *, blocks: bool) -> None:
        """The program asks for the value of a closure; ``blocks``: it waits for it."""
        if blocks:
            self.holding.check_not_held()
        if self._core.in_rounds:
            with self._core.changed:
                self._core.seal(closure + 1)

    def describe(self, closure: int) -> str:
        """A closure's function and number, and where it is."""
        core = self._core
        with core.changed:
            return f"{core.named(closure)}, which {whereabouts(core.state, closure, core.named)}"

    def add_resource(self, resource_id: str, pickled: bytes) -> None:
        with self._core.changed:
            self._core.outboxes.define(resource_id, pickled)

    def drop_resource(self, resource_id: str) -> None:
        """May be called from a finalizer on any thread: touches the queues only."""
        self._core.outboxes.drop(resource_id)

    def stop(self, error: Exception | None = None) -> None:
        """Ends what has not ended, for good; ``error`` is raised by whoever waits or asks."""
        self._core.stop(error)

    @property
    def is_over(self) -> bool:
        """Whether it was stopped by an error."""
        return self._core.fatal is not None

    def join(self, timeout_s: float) -> None:
        """After :meth:`stop`: waits so long for its thread."""
        self._core.deadlines.close(timeout_s)

    def _raise_errors(self, deadline_s: float | None) -> None:
        """Waits for what is in flight, then raises the first error; the others are notes of it."""
        core = self._core
        if core.fatal is not None:
            raise core.fatal.with_traceback(None)
        if not core.state.failed:
            return
        self.waiting.until(lambda: core.state.is_quiet, deadline_s, "closures in flight to end")
        core.apply(decide.report_errors(core.state))
        first, *others = core.errors
        core.errors, core.given_up = [], None
        alike = Counter(f"{type(other).__name__}: {other}" for other in others)
        for told, times in alike.items():
            first.add_note(f"Also failed{f', {times} times' if times > 1 else ''}: {told}")
        raise first.with_traceback(None)

    # -- who watches

    def counts(self) -> dict[str, int]:
        """Of closures, trainers and rounds."""
        with self._core.changed:
            return self._core.watch.counts(self._core.state)

    def live_trainers(self) -> frozenset[int]:
        """Indices of the trainers that take closures now, or whose loss is not settled yet."""
        with self._core.changed:
            return frozenset(self._core.state.trainers)

    def has_ready_trainer(self, closures: int) -> bool:
        """Whether a trainer has fewer than so many closures, and none waits for any trainer."""
        with self._core.changed:
            return self._core.state.has_ready(closures)

    def trainer_table(self) -> TrainerTable:
        """How each trainer does."""
        with self._core.changed:
            return self._core.watch.table(self._core.state)

    def begin_trace(self, runs_max: int) -> Trace:
        """Notes what closures do from now on. FailedPreconditionError where one is under way."""
        with self._core.changed:
            return self._core.watch.begin_trace(self._name_of, runs_max)

    def end_trace(self) -> None:
        """Inverse of :meth:`begin_trace`."""
        with self._core.changed:
            self._core.watch.trace = None

    @property
    def is_traced(self) -> bool:
        """Whether somebody traces just now."""
        return self._core.watch.trace is not None

    def _name_of(self, closure: int) -> str:
        known = self._core.closures.get(closure)
        return "" if known is None else known.name
