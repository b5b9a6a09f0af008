"""Errors keep class, message and details from process to process, whoever reads them."""

from __future__ import annotations

import inspect
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import errors
from dataservice.errors import (
    AddressInUseError,
    DataServiceError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
    UserFunctionError,
    error_from_dict,
    error_to_dict,
    register_error,
)

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DataServiceError) and cls.__module__ == errors.__name__
]


def over_the_wire(error: BaseException) -> DataServiceError:
    return error_from_dict(json.loads(json.dumps(error_to_dict(error))))


@pytest.mark.parametrize("cls", CLASSES)
def test_error_class_and_message_survive_json_and_pickle(cls: type[DataServiceError]) -> None:
    for back in (over_the_wire(cls("file 'é' is gone")), pickle.loads(pickle.dumps(cls("file")))):
        assert type(back) is cls
        assert str(back) == back.message
    assert over_the_wire(cls("file 'é' is gone")).message == "file 'é' is gone"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.SchemaError, InvalidArgumentError),
        (errors.NotFoundError, KeyError),
        (errors.UnknownDatasetError, NotFoundError),
        (errors.UnknownDatasetError, ValueError),
        (errors.AlreadyExistsError, ValueError),
        (errors.ExistingFileError, errors.AlreadyExistsError),
        (errors.ExistingFileError, FileExistsError),
        (errors.FailedPreconditionError, RuntimeError),
        (errors.AddressInUseError, FailedPreconditionError),
        (errors.AddressInUseError, OSError),
        (errors.DeadlineExceededError, TimeoutError),
        (errors.UnavailableError, ConnectionError),
        (errors.CancelledError, RuntimeError),
        (errors.UnauthenticatedError, PermissionError),
        (errors.ResourceExhaustedError, RuntimeError),
        (errors.DataLossError, OSError),
        (errors.InternalError, RuntimeError),
        (errors.UnimplementedError, NotImplementedError),
        (errors.UnsplittableError, InvalidArgumentError),
        (errors.UnsplittableError, errors.UnimplementedError),
        (errors.SourceError, OSError),
        (errors.UserFunctionError, RuntimeError),
    ],
)
def test_error_is_caught_as_nearest_builtin(cls: type[Exception], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"^wrong$"):
        raise cls("wrong")


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not DataServiceError])
def test_every_error_is_caught_as_some_builtin(cls: type[Exception]) -> None:
    of_python = {base for base in cls.__mro__ if base.__module__ == "builtins"}
    assert of_python - {object, BaseException, Exception}


def test_error_codes_are_distinct_and_stable() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)
    assert NotFoundError.code == "NOT_FOUND"
    assert SchemaError.code == "SCHEMA"


def test_not_found_error_shows_message_without_quotes() -> None:
    assert str(NotFoundError("no dataset 'a'")) == "no dataset 'a'"


@given(st.text(), st.text(), st.text(), st.text())
def test_user_function_error_keeps_its_details_over_json(
    message: str, user_traceback: str, source: str, worker: str
) -> None:
    back = over_the_wire(
        UserFunctionError(message, user_traceback=user_traceback, source=source, worker=worker)
    )
    assert isinstance(back, UserFunctionError)
    assert (back.message, back.user_traceback, back.source, back.worker) == (
        message,
        user_traceback,
        source,
        worker,
    )


def test_foreign_exception_becomes_internal_error() -> None:
    back = over_the_wire(ZeroDivisionError("division by zero"))
    assert type(back) is InternalError
    assert str(back) == "ZeroDivisionError: division by zero"
    assert str(over_the_wire(AssertionError())) == "AssertionError"
    full = over_the_wire(MemoryError("8 GiB"))
    assert (type(full), str(full)) == (errors.ResourceExhaustedError, "MemoryError: 8 GiB")


def test_unregistered_subclass_is_decoded_as_its_parent() -> None:
    class Unregistered(SchemaError):
        pass

    assert type(over_the_wire(Unregistered("x"))) is SchemaError


def test_unknown_error_code_is_decoded_as_base_error() -> None:
    back = error_from_dict({"code": "FROM_THE_FUTURE", "message": "m"})
    assert type(back) is DataServiceError
    assert str(back) == "FROM_THE_FUTURE: m"


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        {"code": 3, "message": "m"},
        {"code": "INTERNAL"},
        {"code": "X", "message": "m", "details": 1},
    ],
)
def test_malformed_error_is_decoded_as_error(encoded: dict[str, object]) -> None:
    assert "unknown form" in str(error_from_dict(encoded))


def test_unknown_error_details_are_dropped() -> None:
    encoded = {"code": "USER_FUNCTION", "message": "m", "details": {"source": "f", "new": "x"}}
    back = error_from_dict(encoded)
    assert isinstance(back, UserFunctionError)
    assert back.source == "f"


def test_other_package_can_register_error_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_classes_by_code", dict(errors._classes_by_code))

    @register_error
    class AbortedError(DataServiceError):
        code = "TEST_ABORTED"

    assert type(over_the_wire(AbortedError("x"))) is AbortedError
    assert register_error(AbortedError) is AbortedError


def test_error_class_with_taken_or_missing_code_is_refused() -> None:
    class Thief(DataServiceError):
        code = AddressInUseError.code

    class Anonymous(DataServiceError):
        pass

    with pytest.raises(InvalidArgumentError, match="already used by AddressInUseError"):
        register_error(Thief)
    with pytest.raises(InvalidArgumentError, match="must define its own"):
        register_error(Anonymous)
