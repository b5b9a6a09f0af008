"""The scheduler: applies decisions about closures and hands them to the trainers' outboxes.

Holds one lock around decide and apply, and knows neither gRPC nor what a closure computes.
Invariant: every closure that was submitted ends: with a value, an error, or CancelledError.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from pstrain.consistency import ASYNC, Consistency, Sync
from pstrain.coordinator import decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.cancelling import end_without_input
from pstrain.coordinator.join_progress import Meter, Report
from pstrain.coordinator.observing import Observing
from pstrain.coordinator.orders import (
    Closure,
    Drop,
    Ended,
    Outbox,
    RoundOrder,
    Run,
    Settled,
)
from pstrain.coordinator.paces import Paces
from pstrain.coordinator.readings import Readings
from pstrain.coordinator.recovery import Legacy, Marks
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.coordinator.state import CoordinatorState

logger = logging.getLogger(__name__)

ABSENT_TIMEOUT_S = 60.0
"""How long the first round waits for trainers that have never joined."""


_ENDS_NO_WAIT = frozenset({ev.ClosureQueued, ev.ClosureStarted})


class Scheduler(Observing):
    """Thread-safe; ``submit``, ``wait_idle`` and ``cancel`` block, nothing else does."""

    def __init__(
        self,
        *,
        ids: Iterator[int],
        capacity: int,
        attempts_max: int,
        trainer_timeout_s: float,
        consistency: Consistency = ASYNC,
        trainers_expected: int = 1,
        closures_in_flight: int = 1,
    ) -> None:
        super().__init__(trainer_timeout_s)
        self.orders: queue.SimpleQueue[RoundOrder | None] = queue.SimpleQueue()
        self._order: RoundOrder | None = None
        # In rounds, one must have room to begin.
        self._capacity = max(capacity, trainers_expected)
        self._attempts_max = attempts_max
        self._state = CoordinatorState(consistency, trainers_expected)
        self._in_rounds = isinstance(consistency, Sync)
        self._joining_since_s = time.monotonic()
        self._closures: OrderedDict[int, Closure] = OrderedDict()
        self._next_id = 0
        self._paces = Paces(closures_in_flight)
        self._readings = Readings()
        self._ids = ids
        self._errors: list[Exception] = []
        self._fatal: Exception | None = None
        self._given_up: Exception | None = None

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
        began_s = time.monotonic() if deadline_s is not None else 0.0
        with self.changed:
            if self._fatal is not None:
                raise self._fatal
            if self._state.is_idle and not self._outboxes:
                self._alone_since_s = time.monotonic()
            if not self._has_room(trainer):
                self._wait(lambda: self._has_room(trainer), None, "room in the queue")
            number = next(self._ids)
            self._next_id = number + 1
            closure = Closure(
                number,
                function_id,
                pickled_arguments,
                arguments,
                RemoteValue(number, self.changed, self),
                trainer,
                name,
                deadline_s,
                inputs,
                priority,
            )
            self._closures[closure.id] = closure
            if deadline_s is not None:
                self.deadlines.add(closure.id, began_s + deadline_s)
            self._queue(closure)
            self._raise_errors(None)
            self._go_on()
            return closure.value

    def _queue(self, closure: Closure) -> None:
        """In rounds, those of its inputs wait for nothing that is scheduled later."""
        number, trainer, priority = closure.id, closure.trainer, closure.priority
        if not closure.inputs:
            self._apply(decide.schedule(self._state, number, trainer, priority=priority))
            return
        missing = tuple(value.closure for value in closure.inputs if not value.has_ended)
        if missing:
            self._seal(max(missing) + 1)
        without = end_without_input(closure)
        self._apply(
            decide.schedule(self._state, number, trainer, missing, without, priority=priority)
        )

    def wait_idle(
        self, timeout_s: float | None, report: Report | None = None, interval_s: float = 1.0
    ) -> None:
        """Blocks until every closure has ended, then raises their errors, if any.

        ``report`` is called here, with no lock held, every ``interval_s`` and at the end.
        """
        now_s = time.monotonic()
        deadline_s = None if timeout_s is None else now_s + timeout_s
        meter = Meter(self._state.finished_count, now_s)
        is_idle = False
        while not is_idle:
            pause_at_s = None if report is None else time.monotonic() + interval_s
            with self.changed:
                self._seal(self._next_id)
                is_idle = self._wait(
                    lambda: self._state.is_idle, deadline_s, "scheduled closures to end", pause_at_s
                )
            if report is not None:
                report(meter.read(self.counts(), time.monotonic()))
        with self.changed:
            self._raise_errors(deadline_s)

    def is_idle(self) -> bool:
        """Raises errors of ended closures (once those in flight have ended)."""
        with self.changed:
            self._seal(self._next_id)
            self._raise_errors(None)
            return self._state.is_idle

    def add_resource(self, resource_id: str, pickled: bytes) -> None:
        with self.changed:
            self._outboxes.define(resource_id, pickled)

    def drop_resource(self, resource_id: str) -> None:
        """May be called from a finalizer on any thread: touches the queues only."""
        self._outboxes.drop(resource_id)

    def low_water(self) -> int:
        """All closures below have ended for good."""
        with self.changed:
            return next(iter(self._closures), self._next_id)

    def live_trainers(self) -> frozenset[int]:
        """Indices of the trainers that take closures now, or whose loss is not settled yet."""
        with self.changed:
            return frozenset(self._state.trainers)

    def stop(self, error: Exception | None = None) -> None:
        """Ends what has not ended, for good; ``error`` is raised by whoever waits or asks."""
        with self.changed:
            self._fatal = self._fatal or error
            self._apply(decide.cancel_all(self._state))
            self._outboxes.close_all()
            self.orders.put(None)
            self.deadlines.close()
            self.changed.notify_all()

    # -- the trainers' side

    def trainer_joined(self, trainer: int, slots: int, outbox: Outbox) -> None:
        with self.changed:
            self._outboxes.open(trainer, outbox)
            self._apply(decide.join_trainer(self._state, trainer, slots))
            self._idle.add(trainer)
            self._go_on()

    def trainer_silenced(self, trainer: int) -> bool:
        """Takes a trainer for lost; False if it was not there. :meth:`trainer_lost` must follow."""
        with self.changed:
            if not self._outboxes.close(trainer):
                return False
            self._apply(decide.silence_trainer(self._state, trainer))
            return True

    def left_by(self, trainer: int, name: str) -> tuple[frozenset[str], Marks]:
        """Data services that it may have read, and marks that count by what it said here.

        From now on ``name``, the trainer's, is among the lost ones of `reads_services`.
        """
        with self.changed:
            return self._readings.left_by(trainer, name)

    def trainer_lost(self, trainer: int, legacy: Legacy) -> None:
        """What a silenced trainer left is settled; its other closures run again."""
        with self.changed:
            self._readings.forget(trainer)
            for closure_id, (value, error) in legacy.outcomes.items():
                run = self._state.running.get(closure_id)
                if run is not None and run.trainer == trainer:
                    closure = self._closures[closure_id]
                    closure.result, closure.error = value, error
            self._apply(
                decide.lose_trainer(
                    self._state, trainer, legacy.left, attempts_max=self._attempts_max
                )
            )
            self._go_on()
            if not self._outboxes:
                self._alone_since_s = time.monotonic()
            self.changed.notify_all()

    def reads_services(self, services: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """A trainer says which data services it reads from now on.

        Returns those that were not known, and the trainers lost so far, which may have read them.
        """
        with self.changed:
            return self._readings.begin(services)

    def results(self, trainer: int, ended: Sequence[Ended]) -> None:
        """In the order in which they ended."""
        with self.changed:
            self._note_results(trainer, ended)
            self._settle(trainer, [end.closure for end in ended if self._take_in(trainer, end)])
            self._go_on()
            if not self._has_work(trainer):
                self._idle.add(trainer)
            self.changed.notify_all()

    def _take_in(self, trainer: int, end: Ended) -> bool:
        """How a run ended; whether its trainer waits to hear that this was heard."""
        run = (end.closure, trainer, end.attempt)
        if end.was_dropped:
            self._apply(decide.Decision(rounds.end_drop(self._state, *run)))
            return False
        if not decide.is_current(self._state, *run):
            return False
        closure = self._closures[end.closure]
        closure.result, closure.error = end.value, end.error
        if end.part is not None:
            closure.part = end.part
            has_changes = bool(end.part.servers)
            self._apply(decide.prepare(self._state, *run, has_changes=has_changes))
            return False
        self._paces.note(closure.function_id, end.seconds)
        closure.error = self._error_that_counts(closure, end.error)
        self._readings.note(trainer, end.rows)
        settle = decide.finish if closure.error is None else decide.fail
        self._apply(settle(self._state, *run))
        return end.needs_settling

    def _ahead(self, closure: int) -> int:
        return self._paces.ahead(self._closures[closure].function_id)

    def wait_for_round(self, timeout_s: float, is_undone: Callable[[], bool]) -> None:
        """Returns once no round is being applied: what a lost trainer had of it is settled then.

        Or once :meth:`hold` was called and ``is_undone`` says that the round comes to nothing.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: not self._state.round.decided or self._fatal is not None or is_undone(),
                timeout_s,
            )

    def is_ordered(self, order: RoundOrder) -> bool:
        """Whether the order still stands; False once its round is undone."""
        with self.changed:
            return self._order is order and bool(self._state.round.decided)

    def round_applied(self, order: RoundOrder) -> None:
        """All servers have made the changes of this round, unless it was undone meanwhile."""
        with self.changed:
            if not self.is_ordered(order):
                return
            settled: dict[int, list[int]] = {}
            for closure, run in self._state.round.decided.items():
                settled.setdefault(run.trainer, []).append(closure)
            for trainer, closures in settled.items():
                self._settle(trainer, closures)
            self._apply(decide.Decision(rounds.end_round(self._state)))
            self._go_on()
            self.changed.notify_all()

    def _begin_without_absent(self) -> None:
        """Rounds begin, after a while, without trainers that never joined."""
        absent = self._state.round.absent if self._in_rounds and self._state.trainers else ()
        if absent and time.monotonic() - self._joining_since_s > ABSENT_TIMEOUT_S:
            logger.warning("rounds begin without trainers %s: they do not join", sorted(absent))
            self._apply(decide.Decision(rounds.give_up_absent(self._state)))
            self._go_on()

    def _settle(self, trainer: int, closures: list[int]) -> None:
        """Before anything that follows from the results, such as dropping an iterator."""
        if closures:
            self._outboxes.put_if_there(trainer, Settled(tuple(closures)))

    def awaited(self, closure: int) -> None:
        """The program waits for a closure."""
        if self._in_rounds:
            with self.changed:
                self._seal(closure + 1)

    def _seal(self, below: int) -> None:
        """The rounds of closures below wait for none that are not scheduled."""
        if self._in_rounds and (sealed := rounds.seal(self._state, below)):
            self._apply(decide.Decision(sealed))
            self._go_on()

    # -- effects, with the lock held

    def _go_on(self) -> None:
        """Ends the round if that can be, and starts what can be started."""
        if self._in_rounds:
            self._apply(decide.Decision(rounds.decide_round(self._state)))
        self._apply(decide.assign(self._state, self._ahead))
        if self._idle:
            self._note_work()

    def _order_round(self) -> None:
        """Marks count in the order of arrival, which is that of a trainer's elements."""
        this = self._state.round
        parts = []
        for closure, run in this.decided.items():
            part = self._closures[closure].part
            if part is not None:
                self._readings.note(run.trainer, part.rows)
                parts.append((closure, run.attempt, part))
        self._order = RoundOrder(this.number, sorted(parts, key=lambda part: part[0]))
        self.orders.put(self._order)

    def _apply(self, decision: decide.Decision) -> None:
        ends_a_wait = False
        for event in decision.events:
            ends_a_wait = ends_a_wait or type(event) not in _ENDS_NO_WAIT
            if self._trace is not None:
                self._trace.note(event, time.monotonic())
            self._state.apply(event)
            match event:
                case ev.ClosureStarted():
                    parts = self._state.parts.get(event.closure, 0)
                    run = Run(self._closures[event.closure], event.attempt, parts)
                    self._outboxes.put(event.trainer, run)
                case ev.ClosureFinished():
                    ended = self._pop(event.closure)
                    ended.round = self._state.round.number if self._in_rounds else None
                    if not ended.value.has_ended:
                        ended.value._set(ended.result, None)
                    self._keep_ended(ended)
                case ev.ClosureDropped():
                    self._outboxes.put(event.trainer, Drop(event.closure, event.attempt))
                case ev.RoundDecided():
                    self._order_round()
                case ev.RoundUndone() | ev.WorkGivenUp():
                    self._order = None
                case ev.ClosureFailed():
                    self._end_failed(self._pop(event.closure), event.input)
                case ev.ClosureCancelled():
                    self._end_cancelled(event.closure, event.reason, event.input)
                    self._pop(event.closure)
                case ev.CancelAsked():
                    self._ask_to_cancel(event.closure)
                case ev.CancelGranted():
                    self._end_cancelled(event.closure, self._state.cancelling[event.closure])
                case ev.ClosureReturned():
                    self.retries += 1
                    logger.warning("closure %d lost its trainer and runs again", event.closure)
        if ends_a_wait:
            self.changed.notify_all()

    def _raise_errors(self, deadline_s: float | None) -> None:
        """Waits for what is in flight, then raises the first error; the others are notes of it."""
        if self._fatal is not None:
            raise self._fatal
        if not self._state.failed:
            return
        self._wait(lambda: self._state.is_quiet, deadline_s, "closures in flight to end")
        self._apply(decide.report_errors(self._state))
        first, *others = self._errors
        self._errors, self._given_up = [], None
        for other in others:
            first.add_note(f"Also failed: {type(other).__name__}: {other}")
        raise first
