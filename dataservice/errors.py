"""The error tree of the data service, and its JSON form for the wire.

Each class also derives from the nearest built-in exception, so ``except ValueError`` works as
expected::

    DataServiceError
    ├── InvalidArgumentError      ValueError           a bad argument; retrying cannot help
    │   ├── InvalidTypeError      TypeError            an argument of the wrong type
    │   └── SchemaError                                type drift
    │       └── MissingColumnError KeyError            a column that is not there
    ├── NotFoundError             KeyError
    │   └── UnknownDatasetError   ValueError           no dataset is registered under an id
    ├── AlreadyExistsError        ValueError
    │   └── ExistingFileError     FileExistsError      a folder that holds something else
    ├── FailedPreconditionError   RuntimeError         right call, wrong moment or surroundings
    │   └── AddressInUseError     OSError
    ├── DeadlineExceededError     TimeoutError
    ├── UnavailableError          ConnectionError      a peer cannot be reached; may be retried
    ├── CancelledError        RuntimeError         ended by the caller
    ├── UnauthenticatedError      PermissionError
    ├── ResourceExhaustedError    RuntimeError
    ├── DataLossError             OSError              damaged bytes: CRC, journal
    ├── InternalError             RuntimeError         a defect on the peer's side
    ├── UnimplementedError        NotImplementedError
    │   └── UnsplittableError     (InvalidArgumentError too) a plan that cannot be divided
    ├── SourceError               OSError              input file missing, unreadable or corrupt
    └── UserFunctionError         RuntimeError         a user's function raised

DataServiceWarning, a UserWarning, is the category of all warnings of the data service.
Knows nothing of gRPC or Flight. Invariant: ``code`` values are part of the wire format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar


class DataServiceWarning(UserWarning):
    """Something differs from what a user may expect; the message says what, and the remedy."""


class DataServiceError(Exception):
    """Base class of all errors that the data service raises on purpose; ``str()`` is the message.

    ``detail_fields`` names the string attributes that travel with the message; each is also a
    keyword argument of the constructor.
    """

    code: ClassVar[str] = "UNKNOWN"
    detail_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # KeyError.__str__ would return the repr, and OSError.__str__ would look for an errno.
        return self.message


ErrorClass = TypeVar("ErrorClass", bound=type[DataServiceError])

_classes_by_code: dict[str, type[DataServiceError]] = {DataServiceError.code: DataServiceError}


def register_error(cls: ErrorClass) -> ErrorClass:
    """Registers an error class (as its decorator), so that ``error_from_dict`` returns it by code.

    Raises InvalidArgumentError if ``cls`` has no ``code`` of its own or the code is taken.
    """
    code = cls.__dict__.get("code")
    if not isinstance(code, str) or not code:
        raise InvalidArgumentError(f"{cls.__name__} must define its own class attribute `code`")
    holder = _classes_by_code.setdefault(code, cls)
    if holder is not cls:
        raise InvalidArgumentError(
            f"error code {code!r} of {cls.__name__} is already used by {holder.__name__}; "
            "choose another code"
        )
    return cls


def is_registered(cls: type[BaseException]) -> bool:
    """True if ``error_from_dict`` returns errors of exactly this class as this class."""
    return issubclass(cls, DataServiceError) and _classes_by_code.get(cls.code) is cls


@register_error
class InvalidArgumentError(DataServiceError, ValueError):
    """An argument is wrong, whatever the state of the system."""

    code = "INVALID_ARGUMENT"


@register_error
class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument has a type that cannot be right."""

    code = "INVALID_TYPE"


@register_error
class SchemaError(InvalidArgumentError):
    """A column is missing or has a type other than the one expected."""

    code = "SCHEMA"


@register_error
class MissingColumnError(SchemaError, KeyError):
    """No column has the given name; the message lists the columns that exist."""

    code = "MISSING_COLUMN"


@register_error
class NotFoundError(DataServiceError, KeyError):
    """A named thing does not exist."""

    code = "NOT_FOUND"


@register_error
class UnknownDatasetError(NotFoundError, ValueError):
    """No dataset is registered under an id; ValueError too, as `from_dataset_id` of tf.data."""

    code = "UNKNOWN_DATASET"


@register_error
class AlreadyExistsError(DataServiceError, ValueError):
    """A thing of the same name exists with other contents."""

    code = "ALREADY_EXISTS"


@register_error
class ExistingFileError(AlreadyExistsError, FileExistsError):
    """A folder that something is to be written to holds something else."""

    code = "EXISTING_FILE"


@register_error
class FailedPreconditionError(DataServiceError, RuntimeError):
    """The call is valid, but the state of the system forbids it."""

    code = "FAILED_PRECONDITION"


@register_error
class AddressInUseError(FailedPreconditionError, OSError):
    """Another process listens on the wanted port."""

    code = "ADDRESS_IN_USE"


@register_error
class DeadlineExceededError(DataServiceError, TimeoutError):
    """No answer came in time; whether the call took effect is unknown."""

    code = "DEADLINE_EXCEEDED"


@register_error
class UnavailableError(DataServiceError, ConnectionError):
    """A peer is unreachable or went away."""

    code = "UNAVAILABLE"


@register_error
class CancelledError(DataServiceError, RuntimeError):
    """The caller cancelled the work."""

    code = "CANCELLED"


@register_error
class UnauthenticatedError(DataServiceError, PermissionError):
    """The token is missing, wrong or unreadable."""

    code = "UNAUTHENTICATED"


@register_error
class ResourceExhaustedError(DataServiceError, RuntimeError):
    """A stated limit (message size, concurrent calls, memory) was reached."""

    code = "RESOURCE_EXHAUSTED"


@register_error
class DataLossError(DataServiceError, OSError):
    """Bytes are damaged beyond repair."""

    code = "DATA_LOSS"


@register_error
class QuarantinedError(DataLossError):
    """Rows that kill every worker that processes them were left out; the message names the rows."""

    code = "QUARANTINED"


@register_error
class InternalError(DataServiceError, RuntimeError):
    """Something happened that must not happen: a defect of the data service."""

    code = "INTERNAL"


@register_error
class UnimplementedError(DataServiceError, NotImplementedError):
    """A feature is not offered; the message names what to use instead."""

    code = "UNIMPLEMENTED"


@register_error
class UnsplittableError(InvalidArgumentError, UnimplementedError):
    """The plan cannot be divided among data workers; the message names the operator."""

    code = "UNSPLITTABLE"


@register_error
class SourceError(DataServiceError, OSError):
    """An input file cannot be read; the message names the file and the remedy."""

    code = "SOURCE"


@register_error
class MissingFileError(SourceError, NotFoundError, FileNotFoundError):
    """An input file or a checkpoint does not exist, or no file matches a pattern."""

    code = "MISSING_FILE"


@register_error
class UserFunctionError(DataServiceError, RuntimeError):
    """A function given by the user raised an exception.

    ``user_traceback`` holds the user's frames only, ``source`` names the file and row range that
    were being processed, and ``worker`` is the address of the data worker ("" for a local run).
    """

    code = "USER_FUNCTION"
    detail_fields = ("user_traceback", "source", "worker")

    def __init__(
        self, message: str = "", *, user_traceback: str = "", source: str = "", worker: str = ""
    ) -> None:
        super().__init__(message)
        self.user_traceback = user_traceback
        self.source = source
        self.worker = worker

    def __str__(self) -> str:
        return f"{self.message}\non data worker {self.worker}" if self.worker else self.message


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """Returns the JSON-able form of ``error``.

    A MemoryError becomes RESOURCE_EXHAUSTED, and any other exception from outside the tree becomes
    INTERNAL; the message then holds the name of its class too.
    """
    if not isinstance(error, DataServiceError):
        text = str(error)
        name = type(error).__name__
        known = ResourceExhaustedError if isinstance(error, MemoryError) else InternalError
        return {"code": known.code, "message": f"{name}: {text}" if text else name}
    encoded: dict[str, Any] = {"code": error.code, "message": error.message}
    details = {name: getattr(error, name) for name in error.detail_fields}
    if details:
        encoded["details"] = details
    return encoded


def error_from_dict(encoded: Mapping[str, Any]) -> DataServiceError:
    """Returns the error that ``error_to_dict`` encoded, for the caller to raise.

    An unknown code, as from a peer of another version, gives a DataServiceError; unknown details
    are dropped. A malformed mapping gives an InternalError, so that some error is reported.
    """
    code, message = encoded.get("code"), encoded.get("message")
    details = encoded.get("details", {})
    if not (isinstance(code, str) and isinstance(message, str) and isinstance(details, Mapping)):
        return InternalError(f"a peer reported an error in an unknown form: {dict(encoded)!r}")
    cls = _classes_by_code.get(code)
    if cls is None:
        return DataServiceError(f"{code}: {message}")
    known = {name: str(details[name]) for name in cls.detail_fields if name in details}
    return cls(message, **known)
