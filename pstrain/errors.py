"""The errors of training: those of the data service under the same names, and training's own.

What both packages can meet has one class, so an ``except`` here also catches what the shared
runtime raises. Training's own derive from the nearest built-in too::

    DataServiceError
    ├── (dataservice.errors: InvalidArgumentError, UnavailableError, CancelledError, ...)
    │   ├── UnavailableError
    │   │   └── ServerLostError                     a parameter server is gone
    │   ├── FailedPreconditionError
    │   │   └── ServerRestartedError                a parameter server has nothing of this session
    │   └── InvalidArgumentError
    │       └── NoAxisError         IndexError      a scalar that was to be cut along an axis
    └── PSTrainError
        ├── DataError               ValueError      rows that cannot be trained on
        ├── ClosureInputError       RuntimeError    an argument of a closure failed elsewhere
        ├── AbortedError            RuntimeError    given up after too many retries, or fenced
        │   └── RolledBackError                     given up because all went back to a checkpoint
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


# As TensorFlow calls them: the base of all, and what nobody may do without the token.
OpError = DataServiceError
PermissionDeniedError = UnauthenticatedError


@register_error
class ServerLostError(UnavailableError):
    """A parameter server does not answer any more; what it held is gone with it."""

    code = "SERVER_LOST"


@register_error
class ServerRestartedError(FailedPreconditionError):
    """A parameter server was started after the session began, and holds nothing of it."""

    code = "SERVER_RESTARTED"


@register_error
class NoAxisError(InvalidArgumentError, IndexError):
    """A scalar was to be cut along an axis."""

    code = "NO_AXIS"


@register_error
class PSTrainError(DataServiceError):
    """Base of the errors that only training has."""

    code = "PSTRAIN"


@register_error
class DataError(PSTrainError, ValueError):
    """Rows that cannot be trained on; names the column, the value and the remedy."""

    code = "DATA"


@register_error
class ClosureInputError(PSTrainError, RuntimeError):
    """A closure could not run because making one of its arguments failed; see ``__cause__``."""

    code = "CLOSURE_INPUT"


@register_error
class AbortedError(PSTrainError, RuntimeError):
    """Given up: too many retries, or another coordinator took the cluster over."""

    code = "ABORTED"


@register_error
class RolledBackError(AbortedError):
    """A lost parameter server took everything back to a checkpoint; what came later is undone."""

    code = "ROLLED_BACK"


@register_error
class OutOfRangeError(PSTrainError, RuntimeError):
    """A closure's iterator has no more elements.

    It does not derive from StopIteration, which would end a surrounding generator in silence.
    """

    code = "OUT_OF_RANGE"


@register_error
class RemoteError(PSTrainError, RuntimeError):
    """A closure raised an exception whose class is not known on this side.

    It is an instance of the nearest class above that is, too: of a ValueError where the class
    derives from that. ``remote_class`` is the class's qualified name there, ``remote_traceback``
    the user's frames.
    """

    code = "REMOTE"
    detail_fields = ("remote_traceback", "remote_class")

    def __init__(
        self, message: str = "", *, remote_traceback: str = "", remote_class: str = ""
    ) -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
        self.remote_class = remote_class


# As TensorFlow calls an error that its runtime knows no name for.
UnknownError = RemoteError
