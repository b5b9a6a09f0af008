"""The scheduler's interface for trainer links and for the thread that applies rounds.

Decides nothing itself, and knows neither gRPC nor what a closure computes. Invariant: what a
trainer says counts until it is taken for lost, and not afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from pstrain.coordinator import decide, rounds
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import Closure, Ended, Outbox, RoundOrder
from pstrain.coordinator.recovery import Legacy
from pstrain.coordinator.waiting import Waiting
from pstrain.reader_marks import Marks

logger = logging.getLogger(__name__)


class Hearing:
    """The side of a scheduler that trainers speak to.

    Thread-safe; ``next_order`` and ``wait_for_round`` block, nothing else does.
    """

    def __init__(self, core: Core, waiting: Waiting) -> None:
        self._core = core
        self.waiting = waiting

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
        """Takes in how a run ended; whether its trainer is to be told that this was heard."""
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


def _error_that_counts(closure: Closure) -> Exception | None:
    """The error of a run; None where the closure has had a value, and was run again."""
    error = closure.error
    if error is not None and closure.value.has_value:
        logger.warning(
            "closure %d had succeeded, and failed when it ran again: %s", closure.id, error
        )
        return None
    return error
