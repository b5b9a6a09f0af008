from __future__ import annotations

import json
import traceback

import pytest

from dataservice.errors import DataServiceError, UserFunctionError
from pstrain import remote_errors
from pstrain.errors import DataError, OutOfRangeError, RemoteError


class BadRow(ValueError):
    """An error as users write them: with arguments of its own, from which it makes its text."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.source = object()


class BadFile(OSError):
    pass


class Counted(ValueError):
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


def assert_shows_the_remote_traceback_once(error: Exception) -> None:
    """Tools that know no notes, such as IPython 7, show causes."""
    assert "in _raised\n" in str(error.__cause__)
    assert not hasattr(error, "__notes__")
    last = str(error.__cause__).rpartition("direct cause")[2]
    shown = "".join(traceback.format_exception(error))
    assert shown.count(last) == 1
    assert shown.index(last) < shown.rindex(type(error).__name__)


def test_built_in_errors_come_back_as_themselves_with_the_remote_traceback() -> None:
    error = _round_trip(_round_trip(KeyError("price")))
    assert isinstance(error, KeyError)
    assert error.args == ("price",)
    assert_shows_the_remote_traceback_once(error)


def test_our_errors_keep_their_class_and_details() -> None:
    error = _round_trip(UserFunctionError("bad", user_traceback="tb", source="f", worker="w"))
    assert isinstance(error, UserFunctionError)
    assert (error.user_traceback, error.source, error.worker) == ("tb", "f", "w")


def test_the_end_of_the_data_is_out_of_range() -> None:
    assert isinstance(_round_trip(StopIteration()), OutOfRangeError)


def test_other_errors_become_remote_errors_that_name_the_class() -> None:
    class Odd(Exception):
        pass

    error = _round_trip(Odd("so"))
    assert isinstance(error, RemoteError)
    assert isinstance(error, DataServiceError)
    assert "Odd: so" in str(error)
    assert "trainer 3" in str(error)
    assert error.remote_class.endswith("Odd")
    assert "raise error" in error.remote_traceback


def test_a_class_of_the_program_comes_back_as_itself_although_its_arguments_are_its_own() -> None:
    error = _round_trip(_round_trip(BadRow(7, "no price")))
    assert type(error) is BadRow
    assert str(error) == "row 7: no price"
    assert error.row == 7
    assert not hasattr(error, "source")
    assert_shows_the_remote_traceback_once(error)


@pytest.mark.parametrize("cls", [FileNotFoundError, BadFile])
def test_errors_of_files_keep_their_number_and_name(cls: type[OSError]) -> None:
    error = _round_trip(cls(2, "No such file", "x.csv"))
    assert isinstance(error, cls)
    assert (error.errno, error.filename) == (2, "x.csv")


@pytest.mark.parametrize(
    "original", [KeyError("price"), BadData.Nested("price"), BadData("rows"), ValueError(1, "x")]
)
def test_the_text_is_that_of_the_original(original: Exception) -> None:
    error = _round_trip(original)
    assert type(error) is type(original)
    assert str(error) == str(original)
    assert error.args == original.args


@pytest.mark.parametrize("base", [ValueError, OSError, LookupError, BadRow, UnicodeDecodeError])
def test_a_class_that_is_not_known_here_is_caught_by_those_above_that_are(
    base: type[Exception],
) -> None:
    local = type("Local", (base,), {"__init__": lambda _: None, "__str__": lambda _: "so"})
    error = _round_trip(local())
    assert isinstance(error, RemoteError)
    assert isinstance(error, UnicodeError if base is UnicodeDecodeError else base)
    assert "Local: so" in str(error)
    assert error.remote_class.endswith("Local")


def test_a_class_whose_text_would_be_another_is_not_made_again() -> None:
    error = _round_trip(Counted(object()))
    assert isinstance(error, RemoteError)
    assert isinstance(error, ValueError)
    assert "of <object object" in str(error)


def test_a_local_class_of_ours_comes_back_as_ours() -> None:
    class Mine(DataError):
        pass

    assert type(_round_trip(Mine("rows"))) is DataError


def test_errors_whose_text_fails_are_told_all_the_same() -> None:
    class Odd(ValueError):
        def __str__(self) -> str:
            raise KeyError("no text")

    error = _round_trip(Odd())
    assert isinstance(error, ValueError)
    assert "no text" in str(error)


def test_large_arguments_stay_behind() -> None:
    text = remote_errors.encode(_raised(ValueError(bytes(1 << 20))), "trainer 3")
    assert json.loads(text)["args"] is None
    assert isinstance(remote_errors.decode(text), ValueError)


@pytest.mark.parametrize(
    "named", [("os", "system"), ("pstrain", "Variable"), ("no.such", "Error"), ("sys", "exit.x")]
)
def test_names_of_what_is_no_exception_make_nothing(named: tuple[str, str]) -> None:
    value = json.loads(remote_errors.encode(_raised(BadRow(1, "x")), "trainer 3"))
    value["classes"][0] = named
    error = remote_errors.decode(json.dumps(value))
    assert isinstance(error, RemoteError)
    assert isinstance(error, ValueError)


def test_ends_of_the_process_are_remote_errors_alone_and_in_groups() -> None:
    for original in (BaseExceptionGroup("several", [KeyboardInterrupt()]), SystemExit(3)):
        error = _round_trip(original)
        assert isinstance(error, RemoteError)
        assert type(original).__name__ in str(error)


def test_a_group_comes_back_with_its_members() -> None:
    inner = ExceptionGroup("inner", [KeyError("k")])
    group = ExceptionGroup("several", [ValueError("v"), inner, BadRow(3, "empty")])
    back = remote_errors.decode(remote_errors.encode(group, "trainer 0"))
    assert isinstance(back, ExceptionGroup)
    assert str(back) == str(group)
    matched, rest = back.split(KeyError)
    assert matched is not None
    assert rest is not None
    assert [type(each) for each in rest.exceptions] == [ValueError, BadRow]


def test_a_group_of_very_many_is_told_by_its_text() -> None:
    group = ExceptionGroup("several", [ValueError(n) for n in range(1000)])
    text = remote_errors.encode(group, "trainer 0")
    assert len(text) < 1 << 20
    assert "several (1000 sub-exceptions)" in str(remote_errors.decode(text))
