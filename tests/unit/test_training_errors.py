"""The errors of training travel as JSON and are caught by the data service's names."""

from __future__ import annotations

import inspect
import pickle

import pytest

from dataservice import errors as service_errors
from dataservice.errors import error_from_dict, error_to_dict
from pstrain import errors

OWN = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.DataServiceError) and cls.__module__ == errors.__name__
]


@pytest.mark.parametrize("cls", OWN)
def test_training_errors_survive_json(cls: type[errors.DataServiceError]) -> None:
    again = error_from_dict(error_to_dict(cls("what went wrong")))
    assert type(again) is cls
    assert str(again) == "what went wrong"


def test_remote_error_keeps_its_class_and_traceback() -> None:
    error = errors.RemoteError("no", remote_traceback="line 3", remote_class="user.Broken")
    again = error_from_dict(error_to_dict(error))
    assert isinstance(again, errors.RemoteError)
    assert (again.remote_traceback, again.remote_class) == ("line 3", "user.Broken")


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.InvalidTypeError, TypeError),
        (errors.UnavailableError, ConnectionError),
        (errors.DeadlineExceededError, TimeoutError),
        (errors.DataError, ValueError),
        (errors.OutOfRangeError, RuntimeError),
    ],
)
def test_training_errors_are_builtin_errors_too(
    cls: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(cls, builtin)
    assert not issubclass(cls, StopIteration)


def test_error_names_shared_with_dataservice_are_same_classes() -> None:
    assert errors.UnavailableError is service_errors.UnavailableError
    assert errors.CancelledError is service_errors.CancelledError


@pytest.mark.parametrize("cls", OWN)
def test_training_errors_survive_pickling(cls: type[errors.DataServiceError]) -> None:
    assert str(pickle.loads(pickle.dumps(cls("text")))) == "text"
