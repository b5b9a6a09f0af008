"""The errors of training: those of the data service under the same names, and training's own.

Errors that both packages can raise have one class, so an ``except`` here also catches what the
shared runtime raises. Training's own errors derive from the nearest built-in exception as well::

    DataServiceError
    ├── (dataservice.errors: InvalidArgumentError, UnavailableError, CancelledError, ...)
    │   ├── UnavailableError
    │   │   └── ServerLostError                     a parameter server is gone
    │   ├── FailedPreconditionError
    │   │   └── ServerRestartedError                a parameter server restarted in this session
    │   └── InvalidArgumentError
    │       └── NoAxisError         IndexError      a scalar cannot be cut along an axis
    └── PSTrainError
        ├── DataError               ValueError      rows that cannot be trained on
        ├── ClosureInputError       RuntimeError    an argument of a closure failed elsewhere
        ├── AbortedError            RuntimeError    given up after too many retries, or fenced
        │   └── RolledBackError                     undone: training went back to a checkpoint
        ├── OutOfRangeError         RuntimeError    an iterator inside a closure ended
        └── RemoteError             RuntimeError    an exception class unknown on this side

Knows nothing of transports. Invariant: ``code`` values are part of the wire format.
"""

from __future__ import annotations

from dataservice.errors import (
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingFileError,
    NotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    register_error,
)

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "ClosureInputError",
    "DataError",
    "DataLossError",
    "DataServiceError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "MissingFileError",
    "NoAxisError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PSTrainError",
    "PermissionDeniedError",
    "RemoteError",
    "ResourceExhaustedError",
    "RolledBackError",
    "ServerLostError",
    "ServerRestartedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]


# TensorFlow's names, for the base of all errors and for a request without a valid token.
OpError = DataServiceError
PermissionDeniedError = UnauthenticatedError


@register_error
class ServerLostError(UnavailableError):
    """A parameter server has stopped answering; the values that it held are lost."""

    code = "SERVER_LOST"


@register_error
class ServerRestartedError(FailedPreconditionError):
    """A parameter server was started after the session began, so it has none of its variables."""

    code = "SERVER_RESTARTED"


@register_error
class NoAxisError(InvalidArgumentError, IndexError):
    """A partitioner was asked to cut an axis that the variable does not have."""

    code = "NO_AXIS"


@register_error
class PSTrainError(DataServiceError):
    """The base class of the errors that only training has."""

    code = "PSTRAIN"


@register_error
class DataError(PSTrainError, ValueError):
    """Some rows cannot be trained on; the message names the column, the value and the remedy."""

    code = "DATA"


@register_error
class ClosureInputError(PSTrainError, RuntimeError):
    """A closure could not run because creating one of its arguments failed; see ``__cause__``."""

    code = "CLOSURE_INPUT"


@register_error
class AbortedError(PSTrainError, RuntimeError):
    """An operation was given up: too many retries, or another coordinator took the cluster over."""

    code = "ABORTED"


@register_error
class RolledBackError(AbortedError):
    """A lost parameter server rolled all state back to a checkpoint; later changes are undone."""

    code = "ROLLED_BACK"


@register_error
class OutOfRangeError(PSTrainError, RuntimeError):
    """A closure's iterator has no more elements.

    It does not derive from StopIteration, which would silently end a surrounding generator.
    """

    code = "OUT_OF_RANGE"


@register_error
class RemoteError(PSTrainError, RuntimeError):
    """A closure raised an exception whose class is not known in this process.

    The error is also an instance of that class's nearest base class that is known here: of
    ValueError if the unknown class derives from ValueError. ``remote_class`` is the qualified name
    of the class on the trainer, ``remote_traceback`` the traceback from there.
    """

    code = "REMOTE"
    detail_fields = ("remote_traceback", "remote_class")

    def __init__(
        self, message: str = "", *, remote_traceback: str = "", remote_class: str = ""
    ) -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
        self.remote_class = remote_class


# TensorFlow's name for an error of a kind that its runtime does not know.
UnknownError = RemoteError
