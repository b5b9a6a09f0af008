"""The scheduler's parts towards trainers' links, and towards the thread that applies rounds.

Takes no decisions itself, and knows neither gRPC nor what a closure computes. Invariant: messages
of a trainer count until it is taken for lost, and not afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from pstrain.coordinator import decide, rounds
from pstrain.coordinator.core import Core
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Closure, Outbox, RoundOrder, RoundPart, RunResult
from pstrain.coordinator.waits import Waits
from pstrain.reader_marks import Marks

logger = logging.getLogger(__name__)


class TrainerInterface:
    """What one scheduler hears from its trainers' links. Thread-safe; nothing blocks."""

    def __init__(self, core: Core, waits: Waits) -> None:
        self._core = core
        self._waits = waits

    def joined(self, trainer: int, slots: int, outbox: Outbox) -> None:
        core = self._core
        with core.changed:
            core.outboxes.open(trainer, outbox)
            core.apply(decide.join_trainer(trainer, slots))
            core.stats.note_idle(trainer, core.state.trainers)
            core.make_progress()

    def silence(self, trainer: int) -> bool:
        """Takes a trainer for lost; False if it was not connected. :meth:`lost` must follow."""
        core = self._core
        with core.changed:
            if not core.outboxes.close(trainer):
                return False
            core.apply(decide.silence_trainer(core.state, trainer))
            core.make_progress()
            return True

    def marks_of(self, trainer: int) -> Marks:
        """Returns the row marks of a trainer's reported ends."""
        with self._core.changed:
            return self._core.trainer_marks.of(trainer)

    def record_settled(self, name: str, marks: Marks) -> frozenset[str]:
        """The same as :meth:`TrainerMarks.record_settled`."""
        with self._core.changed:
            return self._core.trainer_marks.record_settled(name, marks)

    def lost(self, trainer: int, settlement: Settlement) -> None:
        """Ends what a lost trainer had decided, as ``settlement`` says; its others run again."""
        core = self._core
        with core.changed:
            core.trainer_marks.forget(trainer)
            self._forget_errors(trainer)
            for closure_id, (value, error) in settlement.outcomes.items():
                run = core.state.running.get(closure_id)
                if run is not None and run.trainer == trainer:
                    closure = core.closures[closure_id]
                    closure.result, closure.error = value, error
            core.apply(
                decide.lose_trainer(
                    core.state, trainer, settlement.decided, attempts_max=core.attempts_max
                )
            )
            core.make_progress()
            if not core.outboxes:
                self._waits.note_no_trainers()
            core.changed.notify_all()

    def _forget_errors(self, trainer: int) -> None:
        """Forgets the errors of runs that have not ended, as of those that waited for a round."""
        known = self._core.state.trainers.get(trainer)
        for closure in () if known is None else known.running:
            self._core.closures[closure].error = None

    def services_read(self, services: Iterable[str]) -> dict[str, frozenset[str]]:
        """The same as :meth:`TrainerMarks.add_services`.

        If that names trainers, their readers are to be released, and :meth:`released` must follow.
        """
        core = self._core
        with core.changed:
            untold = core.trainer_marks.add_services(services)
            if untold:
                core.apply(decide.begin_release())
            return untold

    def released(self) -> None:
        """Notes that services gave back what lost trainers held: an end met before may be none."""
        core = self._core
        with core.changed:
            core.apply(decide.end_release())
            core.make_progress()

    def low_water(self) -> int:
        """Returns the low-water mark: all closures below it have ended for good."""
        core = self._core
        with core.changed:
            return next(iter(core.closures), core.next_id)

    def results(self, trainer: int, ended: Sequence[RunResult]) -> None:
        """Takes in ends of runs that a trainer reports, in the order in which they ended."""
        core = self._core
        with core.changed:
            core.stats.note_results(trainer, ended)
            core.settle(
                trainer, [end.closure for end in ended if self._handle_result(trainer, end)]
            )
            core.make_progress()
            core.stats.note_idle(trainer, core.state.trainers)
            core.changed.notify_all()

    def _handle_result(self, trainer: int, end: RunResult) -> bool:
        """Takes in how a run ended; True if its trainer has to be told that the end arrived."""
        core, run = self._core, (end.closure, trainer, end.attempt)
        if end.was_dropped:
            core.apply(rounds.end_drop(core.state, *run))
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
        if end.ended_iterators and (
            events := decide.meet_end(core.state, *run, end.ended_iterators)
        ):
            # In rounds its marks may cover rows of closures that wait to be decided.
            if not core.in_rounds:
                core.trainer_marks.note(trainer, end.marks)
            core.apply(events)
            return end.needs_settling
        core.run_times.note(closure.function_id, end.seconds)
        closure.error = _error_that_counts(closure)
        if end.marks and core.state.has_prepared(trainer):
            # They may cover rows of what is prepared, so they count, and the closure ends, with it.
            closure.part = RoundPart("", (), has_gradient=False, marks=end.marks)
            has_failed = closure.error is not None
            core.apply(decide.prepare(core.state, *run, has_changes=False, has_failed=has_failed))
            return False
        core.trainer_marks.note(trainer, end.marks)
        settle = decide.finish if closure.error is None else decide.fail
        core.apply(settle(core.state, *run))
        return end.needs_settling

    def cancel_answered(
        self, trainer: int, closure: int, attempt: int, *, is_granted: bool
    ) -> None:
        """Takes a trainer's answer to a request to cancel; granted: it commits nothing."""
        core = self._core
        with core.changed:
            core.apply(
                decide.answer_cancel(core.state, closure, trainer, attempt, is_granted=is_granted)
            )


class RoundOrders:
    """The rounds of one scheduler that servers have to apply, in order. Thread-safe.

    ``next_order`` and ``wait_for_round`` block.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def next_order(self) -> RoundOrder | None:
        """Blocks until a round is to be applied; returns None once the scheduler has stopped."""
        return self._core.orders.get()

    def is_ordered(self, order: RoundOrder) -> bool:
        """True while the order stands; False once its round is undone."""
        core = self._core
        with core.changed:
            return core.order is order and bool(core.state.round.decided)

    def applied(self, order: RoundOrder) -> None:
        """Ends a round that all servers have applied; does nothing if it was undone meanwhile."""
        core = self._core
        with core.changed:
            if not self.is_ordered(order):
                return
            settled: dict[int, list[int]] = {}
            for closure, run in core.state.round.decided.items():
                settled.setdefault(run.trainer, []).append(closure)
            for trainer, closures in settled.items():
                core.settle(trainer, closures)
            core.apply(rounds.end_round(core.state))
            core.make_progress()
            core.changed.notify_all()

    def wait_for_round(self, timeout_s: float, is_undone: Callable[[], bool]) -> None:
        """Blocks until no round is being applied, so that a lost trainer's part in it is settled.

        Returns as well once the scheduler has stopped, ``timeout_s`` has passed, or ``is_undone``
        says, after :meth:`Rollback.hold`, that the round will be undone.
        """
        core = self._core
        with core.changed:
            core.changed.wait_for(
                lambda: not core.state.round.decided or core.fatal is not None or is_undone(),
                timeout_s,
            )


def _error_that_counts(closure: Closure) -> Exception | None:
    """Returns the error of a run; None if the closure had a value before and was run again."""
    error = closure.error
    if error is not None and closure.value.has_value:
        logger.warning(
            "closure %d had succeeded, and failed when it ran again: %s", closure.id, error
        )
        return None
    return error
