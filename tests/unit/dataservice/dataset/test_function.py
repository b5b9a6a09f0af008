"""User functions: accepted callables, pickling, loading, and how their errors are shown."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

from dataservice import Dataset
from dataservice.dataset.expressions import col
from dataservice.dataset.function import Function, call_user, call_user_per_row
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SchemaError,
    UserFunctionError,
)
from dataservice.runtime.pickling.shipping import unpickling


def double(values: Any) -> Any:
    return values * 2


def shipped(value: Any) -> Function:
    """Returns the function as another process would get it."""
    blob, python = Function.of(value).pickled()
    return Function(blob=blob, python=python, name="f")


@pytest.mark.parametrize(
    "value", [double, lambda v: v * 2, functools.partial(np.multiply, 2), np.vectorize(double)]
)
def test_callable_survives_pickling(value: Any) -> None:
    assert shipped(value).load(allow_functions=True)(np.array([3]))[0] == 6


def test_function_of_users_module_is_pickled_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    blob, _ = Function.of(double).pickled()
    monkeypatch.delitem(sys.modules, double.__module__)
    monkeypatch.setattr(sys, "path", [])
    assert Function(blob=blob).load(allow_functions=True)(4) == 8


def test_function_reference_is_imported() -> None:
    function = Function.of("math:sqrt")
    assert function.load(allow_functions=False)(9) == 3
    assert Function.of("os:path.join").load(allow_functions=False)("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("math:nope", "math:nope.*cannot be imported"),
        ("no_such_module:f", "cannot be imported"),
        ("math:pi", "names a float"),
    ],
)
def test_unresolvable_function_reference_is_refused(reference: str, message: str) -> None:
    with pytest.raises((FailedPreconditionError, InvalidArgumentError), match=message):
        Function.of(reference).load(allow_functions=True)


@pytest.mark.parametrize("value", ["sqrt", "math:", ":f", "a b:c", 7, None])
def test_value_that_is_no_function_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="function"):
        Function.of(value, "map")


def test_quoted_condition_is_refused_naming_remedy() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"'id > 3'.*without quotes, as dataservice\.col"
    ):
        Function.of("id > 3", "filter")


def test_pickled_functions_can_be_forbidden() -> None:
    with pytest.raises(FailedPreconditionError, match="without pickled functions"):
        shipped(double).load(allow_functions=False)


def test_pickle_of_other_python_version_is_refused() -> None:
    blob, _ = Function.of(double).pickled()
    with pytest.raises(FailedPreconditionError, match=r"Python 3\.4"):
        Function(blob=blob, python="3.4", name="f").load(allow_functions=True)


def test_unpicklable_function_cannot_be_sent_but_runs_locally() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidArgumentError, match="locks"):
        Function.of(lambda v: (lock, v)).pickled()
    # In this process it runs all the same.
    assert Function.of(lambda v: (lock, v)).load(allow_functions=True)(1)[1] == 1


def test_expression_is_kept_as_expression() -> None:
    assert Function.of(col("x") > 1).expression is not None


def broken(columns: dict[str, Any]) -> Any:
    return deeper(columns)


def deeper(columns: dict[str, Any]) -> Any:
    return columns["nope"]


def test_user_error_shows_only_user_frames() -> None:
    with pytest.raises(UserFunctionError) as caught:
        call_user(broken, {"x": 1}, "map", lambda: "a.parquet rows 3..9")
    error = caught.value
    assert "the function given to map raised KeyError: 'nope'" in error.message
    assert "a.parquet rows 3..9" in error.message
    assert error.source == "a.parquet rows 3..9"
    assert "in broken" in error.user_traceback
    assert "in deeper" in error.user_traceback
    assert "call_user" not in error.user_traceback
    assert "dataset/function.py" not in error.user_traceback
    assert isinstance(error.__cause__, KeyError)


def broken_in_window(_key: int, window: Any) -> Any:
    return deeper(window)


def broken_generator() -> Iterator[dict[str, int]]:
    yield {"x": 1}
    deeper({})


@pytest.mark.parametrize(
    "data",
    [
        Dataset.range(4).map(broken, format="rows"),
        Dataset.range(4).filter(broken),
        Dataset.range(4).with_column("y", broken),
        Dataset.range(4).interleave(broken),
        Dataset.range(4).group_by_window(broken, window_size=2),
        Dataset.range(4).group_by_window("id", broken_in_window, 2),
        Dataset.range(4).group_by_window("id", window_size_func=broken),
        Dataset.from_generator(broken_generator, pa.schema({"x": pa.int64()})),
    ],
)
def test_user_error_of_each_operator_begins_with_the_user_s_frame(data: Dataset) -> None:
    with pytest.raises(UserFunctionError) as caught:
        list(data)
    first = caught.value.user_traceback.splitlines()[1]
    assert __file__ in first
    assert "in broken" in first


@pytest.mark.parametrize("raised", [SystemExit(3), BaseException("neither")])
def test_base_exception_in_user_function_is_reported_as_user_error(raised: BaseException) -> None:
    def leave(_columns: Any) -> Any:
        raise raised

    with pytest.raises(UserFunctionError, match=f"map raised {type(raised).__name__}") as caught:
        call_user(leave, {}, "map", str)
    assert "in leave" in caught.value.user_traceback
    assert caught.value.__cause__ is raised


class UnprintableError(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_exception_without_a_text_is_reported_as_user_error() -> None:
    def fail(_columns: Any) -> Any:
        raise UnprintableError

    with pytest.raises(UserFunctionError, match=r"map raised UnprintableError: <exc.*failed>\n"):
        call_user(fail, {"x": np.arange(3)}, "map", str)


def test_keyboard_interrupt_in_user_function_is_not_wrapped() -> None:
    def interrupted(_columns: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_user(interrupted, {}, "map", str)


def test_user_error_per_row_shows_only_user_frames() -> None:
    with pytest.raises(UserFunctionError) as caught:
        call_user_per_row(broken, [{}], "map", str)
    assert "dataset/function.py" not in caught.value.user_traceback
    assert call_user_per_row(double, [1, 2], "map", str) == [2, 4]


def test_compiled_function_gets_columns_named_by_its_arguments() -> None:
    class Compiled:
        """An object that looks like one of numba's dispatchers."""

        def __init__(self, py_func: Any) -> None:
            self.py_func = py_func

        def __call__(self, *arguments: Any) -> Any:
            return self.py_func(*arguments)

    def add(b: Any, a: Any) -> Any:
        total = a + 10 * b
        return total

    assert call_user(Compiled(add), {"a": 1, "b": 2, "c": 3}, "with_column", str) == 21
    with pytest.raises(UserFunctionError, match="'b' names no column"):
        call_user(Compiled(add), {"a": 1}, "with_column", str)
    assert call_user(Compiled(lambda x: x + 1), {"id": 1}, "map", str) == 2

    class Vectorized:
        """An object that looks like what numba.vectorize makes."""

        _dispatcher = Compiled(add)

        def __call__(self, *arguments: Any) -> Any:
            return add(*arguments)

    assert call_user(Vectorized(), {"a": 1, "b": 2}, "with_column", str) == 21
    assert issubclass(SchemaError, ValueError)


def test_guvectorized_function_gets_columns_named_by_its_inputs() -> None:
    def add_up(b: Any, a: Any, total: Any) -> None:
        total[0] = b[0] + a[0]
        for row in range(1, len(a)):
            total[row] = total[row - 1] + a[row] + b[row]

    layout, columns = "(n),(n)->(n)", {"a": np.array([1.0, 2.0]), "b": np.array([10.0, 20.0])}
    typed = numba.guvectorize(["void(float64[:], float64[:], float64[:])"], layout)(add_up)
    found = call_user(shipped(typed).load(allow_functions=True), columns, "with_column", str)
    assert found.tolist() == [11.0, 33.0]
    untyped = numba.guvectorize(layout)(add_up)
    with pytest.raises(UserFunctionError, match=r"add_up was given .* without types"):
        call_user(untyped, columns, "with_column", str)


@pytest.mark.parametrize("function", [shipped(double), Function.of("math:sqrt")])
def test_function_is_loaded_while_no_other_thread_loads_one(function: Function) -> None:
    loading = threading.Thread(target=function.load, args=(True,), daemon=True)
    with unpickling:
        loading.start()
        loading.join(0.1)
        assert loading.is_alive()
    loading.join(10.0)
    assert not loading.is_alive()


@pytest.mark.parametrize("function", [lambda x: x + 1, lambda x, y: x + y])
def test_function_that_takes_values_is_told_that_it_gets_columns(function: Any) -> None:
    for dataset in (Dataset.range(3).map(function), Dataset.range(3).filter(function)):
        with pytest.raises(
            UserFunctionError, match=r"gets one dict of arrays by column, here with 'id'\)"
        ):
            dataset.to_table()


def sign(columns: dict[str, Any]) -> dict[str, Any]:
    return {"id": 1 if columns["id"] > 0 else 0}


def increment(columns: dict[str, Any]) -> dict[str, Any]:
    columns["id"] += 1
    return columns


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (sign, r"whole columns: write & .* numpy\.where\(condition, a, b\) for if"),
        (increment, r"columns cannot be changed: return new ones"),
    ],
)
def test_function_that_takes_a_column_for_a_value_is_told_what_to_write(
    function: Any, message: str
) -> None:
    with pytest.raises(UserFunctionError, match=message):
        Dataset.range(3).map(function).to_table()


def test_other_errors_of_functions_are_told_as_they_are() -> None:
    with pytest.raises(UserFunctionError) as caught:
        Dataset.range(3).map(lambda c: c["id"] + "a").to_table()
    assert "gets one dict" not in str(caught.value)
    with pytest.raises(UserFunctionError) as caught:
        Dataset.range(3).map(lambda r: r["id"] if np.ones(2) else 1, format="rows").to_table()
    assert "whole columns" not in str(caught.value)
