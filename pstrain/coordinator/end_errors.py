"""The errors of closures that failed or were cancelled.

Pure: values in, exceptions out. Invariant: an error names the closure and how it ended.
"""

from __future__ import annotations

from typing import Final

from pstrain.coordinator import events as ev
from pstrain.coordinator.orders import Closure
from pstrain.errors import AbortedError, CancelledError, ClosureInputError, DeadlineExceededError

_UNWANTED: Final = (CancelledError, DeadlineExceededError)


def error_of_failed(closure: Closure, missing: int | None, attempts_max: int) -> Exception:
    """Returns its own error, that of the ``missing`` input, or else that it lost its trainers."""
    if missing is not None:
        return _input_error(closure, missing)
    return closure.error or AbortedError(
        f"closure {closure.id} lost its trainer {attempts_max} times; it may be what "
        "kills the trainers: run it locally to see"
    )


def error_of_cancelled(
    closure: Closure, reason: ev.Reason, missing: int | None, because: Exception | None
) -> Exception:
    """Returns the error of a cancelled closure. ``because``: why all were cancelled, if known."""
    if missing is not None:
        return _input_error(closure, missing)
    if reason is ev.Reason.ASKED:
        return CancelledError(f"{closure.label} was cancelled by RemoteValue.cancel()")
    if reason is ev.Reason.OVERDUE:
        return DeadlineExceededError(
            f"{closure.label} had not begun to commit {closure.deadline_s} s after it was "
            "scheduled, which was its deadline_s: nothing of it is applied"
        )
    return because or CancelledError(
        f"{closure.label} was cancelled because another one failed or the coordinator was closed; "
        "schedule it again"
    )


def _input_error(closure: Closure, missing: int) -> ClosureInputError:
    """Returns the error of a closure whose input has no value; its cause is the input's error."""
    (cause,) = {value.error for value in closure.inputs if value.closure == missing}
    why = "" if cause is None else f": {type(cause).__name__}: {cause}"
    error = ClosureInputError(
        f"{closure.label} needs the value of closure {missing}, which has none{why}"
    )
    error.__cause__ = cause
    return error


def end_without_input(closure: Closure) -> ev.ClosureFailed | ev.ClosureCancelled | None:
    """Returns how a closure ends at once because an input has ended without a value, if one has.

    It fails, unless that input was cancelled or missed its deadline: then it is cancelled.
    """
    for value in closure.inputs:
        if value.has_ended and not value.has_value:
            if is_unwanted(value.error):
                return ev.ClosureCancelled(
                    closure=closure.id, reason=ev.Reason.INPUT, input=value.closure
                )
            return ev.ClosureFailed(closure=closure.id, input=value.closure)
    return None


def is_unwanted(error: BaseException | None) -> bool:
    """True of the error of a closure that ended because its program had asked for that end."""
    return isinstance(_reason_of(error), _UNWANTED)


def _reason_of(error: BaseException | None) -> BaseException | None:
    """Returns the error of the first in a chain of closures, each of which needs the one before."""
    while isinstance(error, ClosureInputError) and error.__cause__ is not None:
        error = error.__cause__
    return error
