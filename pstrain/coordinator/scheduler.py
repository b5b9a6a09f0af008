"""The scheduler: takes closures in, and what trainers say of them, and has each run on one.

Decides nothing itself, and knows neither gRPC nor what a closure computes. Invariant: every closure
that was submitted ends: with a value, an error, or CancelledError.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from pstrain.coordinator import decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.end_errors import end_without_input
from pstrain.coordinator.holding import Holding
from pstrain.coordinator.join_progress import Meter, Report
from pstrain.coordinator.orders import Closure, Ended, Outbox, RoundOrder
from pstrain.coordinator.recovery import Legacy
from pstrain.coordinator.redoing import Redoing
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.tracing import Trace
from pstrain.coordinator.trainer_stats import TrainerTable
from pstrain.coordinator.waiting import Waiting
from pstrain.coordinator.whereabouts import whereabouts
from pstrain.errors import FailedPreconditionError
from pstrain.reader_marks import Marks

logger = logging.getLogger(__name__)


class Scheduler:
    """Thread-safe; ``submit``, ``wait_idle`` and ``cancel`` block, nothing else does.

    ``ids``: of its closures, ascending. ``capacity``: how many closures wait at most for any
    trainer, and for each that closures are bound to. ``holding`` is its part in saves, ``redoing``
    that in restores.
    """

    def __init__(
        self, core: Core, *, ids: Iterator[int], capacity: int, trainer_timeout_s: float
    ) -> None:
        self._core = core
        self._ids = ids
        # In rounds, one must have room to begin.
        self._capacity = max(capacity, core.state.trainers_expected)
        self.waiting = Waiting(core, trainer_timeout_s)
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
            if core.fatal is not None:
                raise core.fatal
            if core.state.is_idle and not core.outboxes:
                self.waiting.note_alone()
            if not self._has_room(trainer):
                self.waiting.until(lambda: self._has_room(trainer), None, "room in the queue")
            if core.stopped:
                raise core.fatal or FailedPreconditionError(
                    "the coordinator is closed; ps.ClusterCoordinator(strategy) makes another one"
                )
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
            raise core.fatal
        if not core.state.failed:
            return
        self.waiting.until(lambda: core.state.is_quiet, deadline_s, "closures in flight to end")
        core.apply(decide.report_errors(core.state))
        first, *others = core.errors
        core.errors, core.given_up = [], None
        for other in others:
            first.add_note(f"Also failed: {type(other).__name__}: {other}")
        raise first

    # -- the trainers' side

    def trainer_joined(self, trainer: int, slots: int, outbox: Outbox) -> None:
        core = self._core
        with core.changed:
            core.outboxes.open(trainer, outbox)
            core.apply(decide.join_trainer(core.state, trainer, slots))
            core.watch.note_idle(trainer, core.state.trainers)
            core.go_on()

    def trainer_silenced(self, trainer: int) -> bool:
        """Takes a trainer for lost; False if it was not there. :meth:`trainer_lost` must follow."""
        core = self._core
        with core.changed:
            if not core.outboxes.close(trainer):
                return False
            core.apply(decide.silence_trainer(core.state, trainer))
            return True

    def left_by(self, trainer: int, name: str) -> tuple[frozenset[str], Marks]:
        """Data services that it may have read, and marks that count by what it said here.

        From now on ``name``, the trainer's, is among the lost ones of `reads_services`.
        """
        with self._core.changed:
            return self._core.readings.left_by(trainer, name)

    def trainer_lost(self, trainer: int, legacy: Legacy) -> None:
        """What a silenced trainer left is settled; its other closures run again."""
        core = self._core
        with core.changed:
            core.readings.forget(trainer)
            for closure_id, (value, error) in legacy.outcomes.items():
                run = core.state.running.get(closure_id)
                if run is not None and run.trainer == trainer:
                    closure = core.closures[closure_id]
                    closure.result, closure.error = value, error
            core.apply(
                decide.lose_trainer(
                    core.state, trainer, legacy.left, attempts_max=core.attempts_max
                )
            )
            core.go_on()
            if not core.outboxes:
                self.waiting.note_alone()
            core.changed.notify_all()

    def reads_services(self, services: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """A trainer says which data services it reads from now on.

        Returns those that were not known, and the trainers lost so far, which may have read them.
        """
        with self._core.changed:
            return self._core.readings.begin(services)

    def low_water(self) -> int:
        """All closures below have ended for good."""
        core = self._core
        with core.changed:
            return next(iter(core.closures), core.next_id)

    def results(self, trainer: int, ended: Sequence[Ended]) -> None:
        """In the order in which they ended."""
        core = self._core
        with core.changed:
            core.watch.note_results(trainer, ended)
            core.settle(trainer, [end.closure for end in ended if self._take_in(trainer, end)])
            core.go_on()
            core.watch.note_idle(trainer, core.state.trainers)
            core.changed.notify_all()

    def _take_in(self, trainer: int, end: Ended) -> bool:
        """How a run ended; whether its trainer waits to hear that this was heard."""
        core, run = self._core, (end.closure, trainer, end.attempt)
        if end.was_dropped:
            core.apply(decide.Decision(rounds.end_drop(core.state, *run)))
            return False
        if not decide.is_current(core.state, *run):
            return False
        closure = core.closures[end.closure]
        closure.result, closure.error = end.value, end.error
        if end.part is not None:
            closure.part = end.part
            has_changes = bool(end.part.servers)
            core.apply(decide.prepare(core.state, *run, has_changes=has_changes))
            return False
        if end.met_end and (decision := decide.meet_end(core.state, *run)).events:
            # In rounds its marks are also of rows whose closures wait to be decided.
            if not core.in_rounds:
                core.readings.note(trainer, end.rows)
            core.apply(decision)
            return end.needs_settling
        core.paces.note(closure.function_id, end.seconds)
        closure.error = _error_that_counts(closure)
        # So may be those of one that failed; they count with the marks of these.
        if not core.state.has_prepared(trainer):
            core.readings.note(trainer, end.rows)
        settle = decide.finish if closure.error is None else decide.fail
        core.apply(settle(core.state, *run))
        return end.needs_settling

    def cancel_answered(
        self, trainer: int, closure: int, attempt: int, *, is_granted: bool
    ) -> None:
        """A trainer says whether it commits nothing of a run."""
        core = self._core
        with core.changed:
            core.apply(
                decide.answer_cancel(core.state, closure, trainer, attempt, is_granted=is_granted)
            )

    # -- rounds

    def next_order(self) -> RoundOrder | None:
        """Blocks until a round is to be applied; None once all has ended."""
        return self._core.orders.get()

    def is_ordered(self, order: RoundOrder) -> bool:
        """Whether the order still stands; False once its round is undone."""
        core = self._core
        with core.changed:
            return core.order is order and bool(core.state.round.decided)

    def round_applied(self, order: RoundOrder) -> None:
        """All servers have made the changes of this round, unless it was undone meanwhile."""
        core = self._core
        with core.changed:
            if not self.is_ordered(order):
                return
            settled: dict[int, list[int]] = {}
            for closure, run in core.state.round.decided.items():
                settled.setdefault(run.trainer, []).append(closure)
            for trainer, closures in settled.items():
                core.settle(trainer, closures)
            core.apply(decide.Decision(rounds.end_round(core.state)))
            core.go_on()
            core.changed.notify_all()

    def wait_for_round(self, timeout_s: float, is_undone: Callable[[], bool]) -> None:
        """Returns once no round is being applied: what a lost trainer had of it is settled then.

        Or once :meth:`Redoing.hold` was called and ``is_undone`` says that the round comes to
        nothing.
        """
        core = self._core
        with core.changed:
            core.changed.wait_for(
                lambda: not core.state.round.decided or core.fatal is not None or is_undone(),
                timeout_s,
            )

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


def _error_that_counts(closure: Closure) -> Exception | None:
    """A closure that has ended well and runs again has had its say."""
    error = closure.error
    if error is not None and closure.value.has_value:
        logger.warning("closure %d had ended well and failed again: %s", closure.id, error)
        return None
    return error
