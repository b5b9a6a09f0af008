"""The state that the parts of a scheduler share, its lock, and the effects of decisions.

Knows neither gRPC nor what a closure computes, and never blocks. Invariant: each event is applied
to the state and takes effect before another thread sees either, and every closure ends at most
once: with a value, an error, or CancelledError.
"""

from __future__ import annotations

import logging
import queue
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pstrain.consistency import ASYNC, Consistency, Sync
from pstrain.coordinator import assigning, decide, exhausted, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.deadlines import Deadlines
from pstrain.coordinator.end_errors import error_of_cancelled, error_of_failed
from pstrain.coordinator.orders import CancelRun, Closure, DropRun, RoundOrder, Settled, StartRun
from pstrain.coordinator.outboxes import Outboxes
from pstrain.coordinator.quiet_condition import QuietCondition
from pstrain.coordinator.run_times import RunTimes
from pstrain.coordinator.scheduler_stats import SchedulerStats
from pstrain.coordinator.state import CoordinatorState
from pstrain.coordinator.trainer_marks import TrainerMarks

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 1 << 20
"""How many ended closures are kept, to be run again after a restore."""

_ENDS_NO_WAIT: Final = frozenset({ev.ClosureQueued, ev.ClosureStarted})


class Core:
    """The shared state of one scheduler. Callers hold its lock, ``changed``; `stop` takes it.

    ``closures``: those that have not ended, in the order of their numbers, all below ``next_id``.
    ``kept``: those that have ended since a checkpoint, by the count of closures finished then; None
    if no restore would run them again. ``orders``: rounds to be applied; ``order`` is the current
    one. ``rolling_back``: a restore keeps closures from starting. ``errors``: errors of closures
    that were not raised yet. ``fatal``: raised by every later call that waits or asks;
    ``given_up``: raised once.
    """

    def __init__(
        self,
        *,
        attempts_max: int,
        consistency: Consistency = ASYNC,
        trainer_indices: Sequence[int] = (0,),
        closures_in_flight: int = 1,
    ) -> None:
        self.changed = QuietCondition()
        self.state = CoordinatorState(consistency, trainer_indices)
        self.in_rounds = isinstance(consistency, Sync)
        self.attempts_max = attempts_max
        self.closures: OrderedDict[int, Closure] = OrderedDict()
        self.next_id = 0
        self.stopped = False
        self.kept: dict[int, Closure] | None = None
        self.outboxes = Outboxes()
        self.deadlines = Deadlines(self._expire)
        self.orders: queue.SimpleQueue[RoundOrder | None] = queue.SimpleQueue()
        self.order: RoundOrder | None = None
        self.rolling_back = False
        self.run_times = RunTimes(closures_in_flight)
        self.trainer_marks = TrainerMarks()
        self.stats = SchedulerStats()
        self.errors: list[Exception] = []
        self.fatal: Exception | None = None
        self.given_up: Exception | None = None

    def stop(self, error: Exception | None = None) -> None:
        """Cancels all closures and stops for good; later calls that wait or ask raise ``error``."""
        with self.changed:
            self.fatal = self.fatal or error
            self.stopped = True
            self.apply(decide.cancel_all(self.state))
            self.outboxes.close_all()
            self.orders.put(None)
            self.deadlines.close()
            self.changed.notify_all()

    def make_progress(self) -> None:
        """Decides the round if complete, ends spent closures, starts those that can start."""
        if self.in_rounds:
            self.apply(rounds.decide_round(self.state))
        if self.state.ends.trainers:
            self.apply(exhausted.end_spent(self.state))
        while started := assigning.assign(self.state, self._ahead, self.run_times.ahead_max):
            self.apply(started)
            if not self.state.ends.trainers:
                return

    def seal(self, below: int) -> None:
        """Has the rounds of closures below ``below`` wait for none that are not scheduled yet."""
        if self.in_rounds and (sealed := rounds.seal(self.state, below)):
            self.apply(sealed)
            self.make_progress()

    def settle(self, trainer: int, closures: list[int]) -> None:
        """Tells a trainer that ends of closures have arrived, before any order that follows."""
        if closures:
            self.outboxes.put_if_connected(trainer, Settled(tuple(closures)))

    def cancel(self, closure: int, reason: ev.Reason) -> None:
        """Cancels a closure; if it runs, asks its trainer, which may refuse."""
        self.apply(decide.cancel(self.state, closure, reason))
        self.make_progress()

    def label_of(self, closure: int) -> str:
        """Returns a closure's function and number, for messages."""
        known = self.closures.get(closure)
        return f"closure {closure}" if known is None else known.label

    def apply(self, events: ev.Events) -> None:
        """Applies the events of a decision in order, with their effects."""
        ends_a_wait = False
        for event in events:
            ends_a_wait = ends_a_wait or type(event) not in _ENDS_NO_WAIT
            self.stats.note_event(event)
            self.state.apply(event)
            match event:
                case ev.ClosureStarted():
                    parts = self.state.parts.get(event.closure, 0)
                    run = StartRun(self.closures[event.closure], event.attempt, parts)
                    self.outboxes.put(event.trainer, run)
                    self.stats.note_work(event.trainer)
                case ev.ClosureFinished():
                    self._finish(self._pop(event.closure))
                case ev.ClosureDropped():
                    self.outboxes.put(event.trainer, DropRun(event.closure, event.attempt))
                case ev.RoundDecided():
                    self._order_round()
                case ev.RoundUndone() | ev.WorkGivenUp():
                    self.order = None
                case ev.ClosureFailed():
                    self._fail(self._pop(event.closure), event.input)
                case ev.ClosureCancelled():
                    self._end_cancelled(self._pop(event.closure), event.reason, event.input)
                case ev.CancelAsked():
                    self._ask_to_cancel(event.closure)
                case ev.CancelGranted():
                    reason = self.state.cancelling[event.closure]
                    self._end_cancelled(self.closures[event.closure], reason)
                case ev.ClosureReturned():
                    self.stats.retries += 1
                case ev.TrainerLost():
                    self._tell_of_loss(event.trainer, events)
        if ends_a_wait:
            self.changed.notify_all()

    def _tell_of_loss(self, trainer: int, events: ev.Events) -> None:
        """Logs a trainer's loss in one line, however many closures it had."""
        returned = [event.closure for event in events if isinstance(event, ev.ClosureReturned)]
        if returned:
            logger.warning(
                "trainer %d is lost; closures of it that run again: %d, the first is %s",
                trainer, len(returned), self.label_of(min(returned)),
            )  # fmt: skip

    def _ahead(self, closure: int) -> int:
        return self.run_times.ahead(self.closures[closure].function_id)

    def _expire(self, closures: list[int]) -> None:
        """Cancels closures whose deadline has passed; called by the thread of the deadlines."""
        with self.changed:
            for closure in closures:
                if closure in self.closures and not self.closures[closure].value.has_ended:
                    self.cancel(closure, ev.Reason.OVERDUE)

    def _order_round(self) -> None:
        """Orders the decided round to be applied.

        Notes reader marks in the order of arrival, which is that of a trainer's elements.
        """
        this = self.state.round
        parts = []
        for closure, run in this.decided.items():
            part = self.closures[closure].part
            if part is not None:
                self.trainer_marks.note(run.trainer, part.marks)
                parts.append((closure, run.attempt, part))
        self.order = RoundOrder(this.number, sorted(parts, key=lambda part: part[0]))
        self.orders.put(self.order)

    def _ask_to_cancel(self, closure: int) -> None:
        """Asks a closure's trainer to cancel it; of a lost one, servers know what it committed."""
        run = self.state.running[closure]
        self.outboxes.put_if_connected(run.trainer, CancelRun(closure, run.attempt))

    def _pop(self, closure: int) -> Closure:
        """Removes a closure that has ended, and its deadline."""
        ended = self.closures.pop(closure)
        if ended.deadline_s is not None:
            self.deadlines.drop(closure)
        return ended

    def _finish(self, closure: Closure) -> None:
        closure.round = self.state.round.number if self.in_rounds else None
        if not closure.value.has_ended:
            closure.value._set(closure.result, None)
        if self.kept is not None and len(self.kept) < KEPT_MAX:
            self.kept[self.state.finished_count] = closure

    def _fail(self, closure: Closure, missing: int | None) -> None:
        error = error_of_failed(closure, missing, self.attempts_max)
        if not closure.value.has_ended:
            closure.value._set(None, error)
        self.errors.append(error)

    def _end_cancelled(
        self, closure: Closure, reason: ev.Reason, missing: int | None = None
    ) -> None:
        """Sets the error of a cancelled closure, unless it was set when its trainer agreed."""
        if not closure.value.has_ended:
            because = self.fatal or self.given_up
            closure.value._set(None, error_of_cancelled(closure, reason, missing, because))
