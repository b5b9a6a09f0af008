"""Errors sent between processes: they keep their class, text and attributes where they can."""

from __future__ import annotations

import json

import pytest

from dataservice.errors import DataServiceError, UserFunctionError
from pstrain.errors import DataError, OutOfRangeError, RemoteError
from pstrain.serialization import remote_errors


class BadRow(ValueError):
    """An error as users write them: with arguments of its own, from which it makes its text."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.source = object()


class BadFile(OSError):
    pass


class ErrorWithUnsendableAttribute(ValueError):
    """An error whose text needs an attribute that cannot be sent."""

    def __init__(self, what: object) -> None:
        super().__init__("counted")
        self.what = what

    def __str__(self) -> str:
        return f"of {self.what!r}"


class BadData(DataError):
    class Nested(KeyError):
        pass


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def _round_trip(error: BaseException) -> Exception:
    return remote_errors.decode(remote_errors.encode(_raised(error), "trainer 3"))


def test_builtin_errors_keep_class_and_carry_remote_traceback() -> None:
    error = _round_trip(_round_trip(KeyError("price")))
    assert isinstance(error, KeyError)
    assert error.args == ("price",)
    assert "_raised" in "".join(error.__notes__)


def test_library_errors_keep_class_and_details() -> None:
    error = _round_trip(UserFunctionError("bad", user_traceback="tb", source="f", worker="w"))
    assert isinstance(error, UserFunctionError)
    assert (error.user_traceback, error.source, error.worker) == ("tb", "f", "w")


def test_stop_iteration_becomes_out_of_range_error() -> None:
    assert isinstance(_round_trip(StopIteration()), OutOfRangeError)


def test_unknown_error_classes_become_remote_errors_naming_the_class() -> None:
    class Odd(Exception):
        pass

    error = _round_trip(Odd("so"))
    assert isinstance(error, RemoteError)
    assert isinstance(error, DataServiceError)
    assert "Odd: so" in str(error)
    assert "trainer 3" in str(error)
    assert error.remote_class.endswith("Odd")
    assert "raise error" in error.remote_traceback


def test_user_error_with_own_constructor_keeps_class_and_attributes() -> None:
    error = _round_trip(_round_trip(BadRow(7, "no price")))
    assert type(error) is BadRow
    assert str(error) == "row 7: no price"
    assert error.row == 7
    assert not hasattr(error, "source")
    assert "_raised" in "".join(error.__notes__)


@pytest.mark.parametrize("cls", [FileNotFoundError, BadFile])
def test_file_errors_keep_errno_and_filename(cls: type[OSError]) -> None:
    error = _round_trip(cls(2, "No such file", "x.csv"))
    assert isinstance(error, cls)
    assert (error.errno, error.filename) == (2, "x.csv")


@pytest.mark.parametrize(
    "original", [KeyError("price"), BadData.Nested("price"), BadData("rows"), ValueError(1, "x")]
)
def test_error_keeps_text_and_arguments(original: Exception) -> None:
    error = _round_trip(original)
    assert type(error) is type(original)
    assert str(error) == str(original)
    assert error.args == original.args


@pytest.mark.parametrize("base", [ValueError, OSError, LookupError, BadRow, UnicodeDecodeError])
def test_unimportable_error_class_is_instance_of_its_importable_bases(
    base: type[Exception],
) -> None:
    local = type("Local", (base,), {"__init__": lambda _: None, "__str__": lambda _: "so"})
    error = _round_trip(local())
    assert isinstance(error, RemoteError)
    assert isinstance(error, UnicodeError if base is UnicodeDecodeError else base)
    assert "Local: so" in str(error)
    assert error.remote_class.endswith("Local")


def test_error_whose_text_would_change_becomes_remote_error() -> None:
    error = _round_trip(ErrorWithUnsendableAttribute(object()))
    assert isinstance(error, RemoteError)
    assert isinstance(error, ValueError)
    assert "of <object object" in str(error)


def test_local_subclass_of_library_error_becomes_library_error() -> None:
    class Mine(DataError):
        pass

    assert type(_round_trip(Mine("rows"))) is DataError


def test_error_whose_str_raises_is_still_sent() -> None:
    class Odd(ValueError):
        def __str__(self) -> str:
            raise KeyError("no text")

    error = _round_trip(Odd())
    assert isinstance(error, ValueError)
    assert "no text" in str(error)


def test_large_error_arguments_are_not_sent() -> None:
    text = remote_errors.encode(_raised(ValueError(bytes(1 << 20))), "trainer 3")
    assert json.loads(text)["args"] is None
    assert isinstance(remote_errors.decode(text), ValueError)


@pytest.mark.parametrize(
    "named", [("os", "system"), ("pstrain", "Variable"), ("no.such", "Error"), ("sys", "exit.x")]
)
def test_decoding_names_that_are_no_exceptions_gives_remote_error(named: tuple[str, str]) -> None:
    value = json.loads(remote_errors.encode(_raised(BadRow(1, "x")), "trainer 3"))
    value["classes"][0] = named
    error = remote_errors.decode(json.dumps(value))
    assert isinstance(error, RemoteError)
    assert isinstance(error, ValueError)


def test_system_exit_and_keyboard_interrupt_become_remote_errors() -> None:
    for original in (BaseExceptionGroup("several", [KeyboardInterrupt()]), SystemExit(3)):
        error = _round_trip(original)
        assert isinstance(error, RemoteError)
        assert type(original).__name__ in str(error)


def test_exception_group_keeps_its_members() -> None:
    inner = ExceptionGroup("inner", [KeyError("k")])
    group = ExceptionGroup("several", [ValueError("v"), inner, BadRow(3, "empty")])
    back = remote_errors.decode(remote_errors.encode(group, "trainer 0"))
    assert isinstance(back, ExceptionGroup)
    assert str(back) == str(group)
    matched, rest = back.split(KeyError)
    assert matched is not None
    assert rest is not None
    assert [type(each) for each in rest.exceptions] == [ValueError, BadRow]


def test_huge_exception_group_is_sent_as_text() -> None:
    group = ExceptionGroup("several", [ValueError(n) for n in range(1000)])
    text = remote_errors.encode(group, "trainer 0")
    assert len(text) < 1 << 20
    assert "several (1000 sub-exceptions)" in str(remote_errors.decode(text))
