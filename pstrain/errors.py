"""The errors of training, in the same tree and with the same JSON form as the data service's.

Each class also derives from the nearest built-in, and from its namesake in ``dataservice.errors``
where there is one, so that one ``except`` catches both::

    DataServiceError
    └── PSTrainError
        ├── InvalidArgumentError    also dataservice's (ValueError)
        ├── DataError               ValueError      rows that cannot be trained on
        ├── ClosureInputError       RuntimeError    an argument of a closure failed elsewhere
        ├── CancelledError          also dataservice's
        ├── UnavailableError        also dataservice's (ConnectionError)
        ├── AbortedError            RuntimeError    given up after too many retries, or fenced
        ├── FailedPreconditionError also dataservice's (RuntimeError)
        ├── NotFoundError           also dataservice's (KeyError)
        ├── DataLossError           also dataservice's (OSError)  a damaged checkpoint
        ├── OutOfRangeError         RuntimeError    an iterator inside a closure ended
        ├── DeadlineExceededError   also dataservice's (TimeoutError)
        └── RemoteError             RuntimeError    an exception class unknown on this side

Knows nothing of transports. Invariant: ``code`` values are part of the wire format.
"""

from __future__ import annotations

from dataservice import errors as service_errors
from dataservice.errors import DataServiceError, register_error


@register_error
class PSTrainError(DataServiceError):
    """Base of all errors that training raises on purpose.

    ``remote_traceback``: the user's frames on the trainer where it was raised, "" when local.
    """

    code = "PSTRAIN"
    detail_fields = ("remote_traceback",)

    def __init__(self, message: str = "", *, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


@register_error
class InvalidArgumentError(PSTrainError, service_errors.InvalidArgumentError):
    """An argument is wrong whatever the state of the system."""

    code = "PSTRAIN_INVALID_ARGUMENT"


@register_error
class InvalidTypeError(PSTrainError, TypeError):
    """An argument has the wrong type."""

    code = "PSTRAIN_INVALID_TYPE"


@register_error
class DataError(PSTrainError, ValueError):
    """Rows that cannot be trained on; names the column, the value and the remedy."""

    code = "PSTRAIN_DATA"


@register_error
class ClosureInputError(PSTrainError, RuntimeError):
    """A closure could not run because making one of its arguments failed; see ``__cause__``."""

    code = "PSTRAIN_CLOSURE_INPUT"


@register_error
class CancelledError(PSTrainError, service_errors.CancelledError):
    """A closure was dropped because another one failed; it may or may not have run."""

    code = "PSTRAIN_CANCELLED"


@register_error
class UnavailableError(PSTrainError, service_errors.UnavailableError):
    """A task of the cluster is unreachable or went away."""

    code = "PSTRAIN_UNAVAILABLE"


@register_error
class AbortedError(PSTrainError, RuntimeError):
    """Given up: too many retries, or another coordinator took the cluster over."""

    code = "PSTRAIN_ABORTED"


@register_error
class FailedPreconditionError(PSTrainError, service_errors.FailedPreconditionError):
    """The call is right but the state of the system forbids it."""

    code = "PSTRAIN_FAILED_PRECONDITION"


@register_error
class NotFoundError(PSTrainError, service_errors.NotFoundError):
    """A named thing does not exist."""

    code = "PSTRAIN_NOT_FOUND"


@register_error
class DataLossError(PSTrainError, service_errors.DataLossError):
    """A checkpoint is damaged or incomplete."""

    code = "PSTRAIN_DATA_LOSS"


@register_error
class OutOfRangeError(PSTrainError, RuntimeError):
    """A closure's iterator has no more elements.

    It does not derive from StopIteration, which would end a surrounding generator in silence.
    """

    code = "PSTRAIN_OUT_OF_RANGE"


@register_error
class DeadlineExceededError(PSTrainError, service_errors.DeadlineExceededError):
    """No answer came in time; the message names what was waited for."""

    code = "PSTRAIN_DEADLINE_EXCEEDED"


@register_error
class RemoteError(PSTrainError, RuntimeError):
    """A closure raised an exception whose class is not known on this side.

    ``remote_class`` is the class's qualified name there.
    """

    code = "PSTRAIN_REMOTE"
    detail_fields = ("remote_traceback", "remote_class")

    def __init__(
        self, message: str = "", *, remote_traceback: str = "", remote_class: str = ""
    ) -> None:
        super().__init__(message, remote_traceback=remote_traceback)
        self.remote_class = remote_class
