"""The scheduler's part in closures that end without a value, above all because nobody wants it.

Decides nothing and knows no connection. Invariant: who asks for a cancellation hears what came of
it as soon as that is certain; nobody else hears of it as of an error.
"""

from __future__ import annotations

import time

from pstrain.coordinator import decide
from pstrain.coordinator import events as ev
from pstrain.coordinator.deadlines import Deadlines
from pstrain.coordinator.holding import Holding
from pstrain.coordinator.orders import Cancel, Closure
from pstrain.errors import AbortedError, CancelledError, ClosureInputError, DeadlineExceededError


class Cancelling(Holding):
    """What of the scheduler is about the ends of single closures. Thread-safe."""

    _attempts_max: int

    def __init__(self, trainer_timeout_s: float) -> None:
        super().__init__(trainer_timeout_s)
        self.deadlines = Deadlines(self._expire)

    def cancel(self, closure: int, timeout_s: float | None) -> None:
        """Ends a closure unless it has begun to commit; blocks until that is known."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            known = self._closures.get(closure)
            if known is None or known.value.has_ended:
                return
            self._cancel(closure, ev.Reason.ASKED)
            self._wait(
                lambda: closure not in self._state.cancelling or known.value.has_ended,
                deadline_s,
                f"its trainer to say whether {self._named(closure)} can be cancelled",
            )

    def cancel_answered(
        self, trainer: int, closure: int, attempt: int, *, is_granted: bool
    ) -> None:
        """A trainer says whether it commits nothing of a run."""
        with self.changed:
            self._apply(
                decide.answer_cancel(self._state, closure, trainer, attempt, is_granted=is_granted)
            )

    def _expire(self, closures: list[int]) -> None:
        with self.changed:
            for closure in closures:
                if closure in self._closures and not self._closures[closure].value.has_ended:
                    self._cancel(closure, ev.Reason.OVERDUE)

    def _cancel(self, closure: int, reason: ev.Reason) -> None:
        self._apply(decide.cancel(self._state, closure, reason))
        self._go_on()

    def _ask_to_cancel(self, closure: int) -> None:
        """Its trainer; one that was lost is not asked, for what it has left says it all."""
        run = self._state.running[closure]
        self._outboxes.put_if_there(run.trainer, Cancel(closure, run.attempt))

    def _pop(self, closure: int) -> Closure:
        """It has ended."""
        ended = self._closures.pop(closure)
        if ended.deadline_s is not None:
            self.deadlines.drop(closure)
        return ended

    def _end_cancelled(self, closure: int, reason: ev.Reason, missing: int | None = None) -> None:
        """Its value says so, unless it was told before that its trainer has let go of it."""
        known = self._closures[closure]
        if not known.value.has_ended:
            known.value._set(None, self._why_cancelled(known, reason, missing))

    def _end_failed(self, closure: Closure, missing: int | None) -> None:
        error = closure.error or AbortedError(
            f"closure {closure.id} lost its trainer {self._attempts_max} times; it may be what "
            "kills them: run it locally to see"
        )
        if missing is not None:
            error = input_error(closure, missing)
        if not closure.value.has_ended:
            closure.value._set(None, error)
        self._errors.append(error)

    def _why_cancelled(self, closure: Closure, reason: ev.Reason, missing: int | None) -> Exception:
        if missing is not None:
            return input_error(closure, missing)
        name = self._named(closure.id)
        if reason is ev.Reason.ASKED:
            return CancelledError(f"{name} was cancelled by RemoteValue.cancel()")
        if reason is ev.Reason.OVERDUE:
            return DeadlineExceededError(
                f"{name} had not begun to commit {closure.deadline_s} s after it was scheduled, "
                "which was its deadline_s: nothing of it is applied"
            )
        return (
            self._fatal
            or self._given_up
            or CancelledError(
                f"{name} was cancelled because another one failed or the coordinator was closed; "
                "schedule it again"
            )
        )


_UNWANTED = (CancelledError, DeadlineExceededError)


def end_without_input(closure: Closure) -> ev.ClosureFailed | ev.ClosureCancelled | None:
    """How a closure ends at once one of whose inputs has ended without a value.

    It has failed, unless nobody wanted that input any more.
    """
    for value in closure.inputs:
        if value.has_ended and not value.has_value:
            if isinstance(_reason_of(value.error), _UNWANTED):
                return ev.ClosureCancelled(
                    closure=closure.id, reason=ev.Reason.INPUT, input=value.closure
                )
            return ev.ClosureFailed(closure=closure.id, input=value.closure)
    return None


def _reason_of(error: BaseException | None) -> BaseException | None:
    """What ended the first of a chain of closures, each of which needed the one before."""
    while isinstance(error, ClosureInputError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def input_error(closure: Closure, missing: int) -> ClosureInputError:
    """What a closure ends with one of whose inputs has no value; why that is, is its cause."""
    (cause,) = {value.error for value in closure.inputs if value.closure == missing}
    why = "" if cause is None else f": {type(cause).__name__}: {cause}"
    name = f"{closure.name} (closure {closure.id})" if closure.name else f"closure {closure.id}"
    error = ClosureInputError(f"{name} needs the value of closure {missing}, which has none{why}")
    error.__cause__ = cause
    return error
