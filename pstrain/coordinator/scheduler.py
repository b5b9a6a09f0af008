"""The scheduler: takes closures, has each run on a trainer, and tells the program how it ended.

Takes no decisions itself, and knows neither gRPC nor what a closure computes. Invariant: every
closure that was submitted ends: with a value, an error, or CancelledError.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from pstrain.coordinator import decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.barrier import Barrier
from pstrain.coordinator.core import Core
from pstrain.coordinator.end_errors import end_without_input
from pstrain.coordinator.join_progress import Meter, OnProgress
from pstrain.coordinator.orders import Closure
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.rollback import Rollback
from pstrain.coordinator.tracing import Trace
from pstrain.coordinator.trainer_interface import RoundOrders, TrainerInterface
from pstrain.coordinator.trainer_stats import TrainerTable, table
from pstrain.coordinator.waits import Waits
from pstrain.coordinator.whereabouts import whereabouts
from pstrain.errors import FailedPreconditionError


class Scheduler:
    """Schedules closures. Thread-safe; ``submit``, ``wait_idle`` and ``cancel`` block.

    ``ids``: ascending numbers for its closures. ``capacity``: at most so many closures wait that
    any trainer may run, and so many for each trainer that closures are bound to. ``trainers``: its
    part towards trainers' links; ``rounds``: that towards the thread that applies rounds;
    ``barrier``: its part in saves; ``rollback``: that in restores.
    """

    def __init__(
        self, core: Core, *, ids: Iterator[int], capacity: int, trainer_timeout_s: float
    ) -> None:
        self._core = core
        self._ids = ids
        # In rounds, the queue must have room for all closures of a round, or none begins.
        self._capacity = max(capacity, core.state.trainers_expected)
        self.waits = Waits(core, trainer_timeout_s)
        self.trainers = TrainerInterface(core, self.waits)
        self.rounds = RoundOrders(core)
        self.barrier = Barrier(core, self.waits)
        self.rollback = Rollback(core, self.waits)

    # -- called by the program

    def submit(
        self,
        function_id: str,
        pickled_arguments: bytes,
        kept: object,
        trainer: int | None = None,
        *,
        name: str = "",
        deadline_s: float | None = None,
        inputs: tuple[RemoteValue, ...] = (),
        priority: int = 0,
        iterators: frozenset[str] = frozenset(),
    ) -> RemoteValue:
        """Queues a closure; blocks while its queue is full; raises errors of earlier ones.

        ``kept``: what its pickled forms refer to, which must live as long as it does.
        ``trainer``: the only one that may run it; such closures wait in a queue of that trainer.
        ``deadline_s``: the time from now in which it must begin to commit. ``inputs``: values that
        it runs with; those not set yet must be of this scheduler. ``priority``: higher ones first.
        ``iterators``: the ids of those among its arguments.
        """
        core = self._core
        began_s = time.monotonic() if deadline_s is not None else 0.0
        with core.changed:
            if core.state.is_idle and not core.outboxes:
                self.waits.note_no_trainers()
            if not self._has_room(trainer):
                self.waits.until(lambda: self._has_room(trainer), None, "room in the queue")
            self._check_open()
            number = next(self._ids)
            core.next_id = number + 1
            closure = Closure(
                number,
                function_id,
                pickled_arguments,
                kept,
                RemoteValue(number, core.changed, self),
                trainer,
                name,
                deadline_s,
                inputs,
                priority,
                iterators,
            )
            core.closures[number] = closure
            if deadline_s is not None:
                core.deadlines.add(number, began_s + deadline_s)
            self._queue(closure)
            self._raise_errors(None)
            if not self._waits_behind_others(number):
                core.make_progress()
            return closure.value

    def _check_open(self) -> None:
        if self._core.fatal is not None:
            raise self._core.fatal.with_traceback(None)
        if self._core.stopped:
            raise FailedPreconditionError(
                "the coordinator is closed; ps.ClusterCoordinator(strategy) makes another one"
            )

    def _waits_behind_others(self, closure: int) -> bool:
        """True if a new closure cannot start, because those before it in the queue could not.

        So scheduling ahead takes the same time however many trainers there are. False if nothing
        runs, as after a call that was interrupted before it took its decisions: no end of a run
        would have them taken.
        """
        core, state = self._core, self._core.state
        is_plain = not (core.in_rounds or state.queues.bound_waiting)
        waits = bool(state.running and state.waiting) and state.waiting.first != closure
        return is_plain and waits

    def _has_room(self, trainer: int | None) -> bool:
        """True if a queue has room; closures bound to a trainer take no room of the others."""
        core = self._core
        if trainer is not None:
            return core.state.queues.count_bound(trainer) < self._capacity
        return len(core.closures) - len(core.state.queues.bound) < self._capacity

    def _queue(self, closure: Closure) -> None:
        """Queues a closure; in rounds, the rounds of its inputs wait for no later closures."""
        core = self._core
        missing = tuple(value.closure for value in closure.inputs if not value.has_ended)
        if missing:
            core.seal(max(missing) + 1)
        immediate_end = end_without_input(closure) if closure.inputs else None
        core.apply(
            decide.schedule(
                core.state,
                closure.id,
                closure.trainer,
                missing,
                immediate_end,
                priority=closure.priority,
                iterators=closure.iterators,
            )
        )

    def wait_idle(
        self,
        timeout_s: float | None,
        on_progress: OnProgress | None = None,
        interval_s: float = 1.0,
    ) -> None:
        """Blocks until every closure has ended, then raises their errors, if any.

        ``on_progress`` is called in this thread, with no lock held, every ``interval_s`` and at the
        end.
        """
        core, now_s = self._core, time.monotonic()
        if not core.state.is_idle:
            self.barrier.check_not_held()
        deadline_s = None if timeout_s is None else now_s + timeout_s
        meter = Meter(core.state.finished_count, now_s)
        is_idle = False
        while not is_idle:
            pause_at_s = None if on_progress is None else time.monotonic() + interval_s
            with core.changed:
                core.seal(core.next_id)
                is_idle = self.waits.until(
                    lambda: core.state.is_idle, deadline_s, "scheduled closures to end", pause_at_s
                )
            if on_progress is not None:
                on_progress(meter.read(self.counts(), time.monotonic()))
        with core.changed:
            self._raise_errors(deadline_s)

    def is_idle(self) -> bool:
        """True if no closure is left; raises errors of ended ones once none is in flight."""
        core = self._core
        with core.changed:
            core.seal(core.next_id)
            self._raise_errors(None)
            return core.state.is_idle

    def cancel(self, closure: int, timeout_s: float | None) -> None:
        """Cancels a closure unless it has begun to commit; blocks until that is known."""
        core = self._core
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with core.changed:
            known = core.closures.get(closure)
            if known is None or known.value.has_ended:
                return
            core.cancel(closure, ev.Reason.ASKED)
            self.waits.until(
                lambda: closure not in core.state.cancelling or known.value.has_ended,
                deadline_s,
                f"its trainer to say whether {known.label} can be cancelled",
            )

    def awaited(self, closure: int, *, blocks: bool) -> None:
        """Notes that the program asks for a closure's value; ``blocks``: this thread will wait."""
        if blocks:
            self.barrier.check_not_held()
        if self._core.in_rounds:
            with self._core.changed:
                self._core.seal(closure + 1)

    def describe(self, closure: int) -> str:
        """Returns a closure's function and number, and where it is."""
        core = self._core
        with core.changed:
            return (
                f"{core.label_of(closure)}, which {whereabouts(core.state, closure, core.label_of)}"
            )

    def add_resource(self, resource_id: str, pickled: bytes, kept: object = None) -> None:
        """Has every trainer make an iterator; ``kept`` lives until :meth:`drop_resource`."""
        core = self._core
        with core.changed:
            core.outboxes.define(resource_id, pickled, kept)
            core.apply(decide.renew_data(core.state))
            core.make_progress()

    def drop_resource(self, resource_id: str) -> None:
        """Has every trainer close an iterator. Takes no lock: finalizers call it in any thread."""
        self._core.outboxes.drop(resource_id)

    def stop(self, error: Exception | None = None) -> None:
        """Cancels all closures and stops for good; later calls that wait or ask raise ``error``."""
        self._core.stop(error)

    @property
    def is_over(self) -> bool:
        """True if an error has stopped the scheduler."""
        return self._core.fatal is not None

    def join(self, timeout_s: float) -> None:
        """Waits, after :meth:`stop`, at most ``timeout_s`` for the scheduler's thread."""
        self._core.deadlines.close(timeout_s)

    def _raise_errors(self, deadline_s: float | None) -> None:
        """Raises the first error, if any, with the others as notes, once none is in flight."""
        core = self._core
        if core.fatal is not None:
            raise core.fatal.with_traceback(None)
        if not core.state.failed:
            return
        self.waits.until(lambda: core.state.is_quiet, deadline_s, "closures in flight to end")
        core.apply(decide.report_errors(core.state))
        first, *others = core.errors
        core.errors, core.given_up = [], None
        alike = Counter(f"{type(other).__name__}: {other}" for other in others)
        for told, times in alike.items():
            first.add_note(f"Also failed{f', {times} times' if times > 1 else ''}: {told}")
        raise first.with_traceback(None)

    # -- observability

    def counts(self) -> dict[str, int]:
        """Returns counts of closures, trainers and rounds."""
        with self._core.changed:
            return self._core.stats.counts(self._core.state)

    def live_trainers(self) -> frozenset[int]:
        """Returns indices of trainers that are connected, or whose loss is not settled yet."""
        with self._core.changed:
            return frozenset(self._core.state.trainers)

    def has_ready_trainer(self, closures: int) -> bool:
        """True if a trainer has fewer than ``closures``, and none waits for any trainer."""
        with self._core.changed:
            return self._core.state.has_ready(closures)

    def trainer_table(self) -> TrainerTable:
        """Returns the performance of each trainer."""
        with self._core.changed:
            observed = self._core.stats.observed(self._core.state)
        # Without the lock: for a thousand trainers this takes a good part of a second.
        return table(*observed)

    def begin_trace(self, runs_max: int) -> Trace:
        """Starts a trace of closures; FailedPreconditionError if one is under way."""
        with self._core.changed:
            return self._core.stats.begin_trace(self._name_of, runs_max)

    def end_trace(self) -> None:
        """Ends the trace."""
        with self._core.changed:
            self._core.stats.trace = None

    @property
    def is_traced(self) -> bool:
        """True while a trace is under way."""
        return self._core.stats.trace is not None

    def _name_of(self, closure: int) -> str:
        known = self._core.closures.get(closure)
        return "" if known is None else known.name
