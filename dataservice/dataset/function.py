"""What an operator applies to rows: an expression, a named function, or a pickled function.

The only module of the data service that unpickles: in the process that runs the function, on first
use, and only if functions are allowed there. Decoding a plan unpickles nothing. Invariant: a
Function is a value; it is loaded at most once per object.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final

import numpy as np

from dataservice.dataset.expressions import Expression
from dataservice.dataset.untouched import TouchedError, UntouchedColumn
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
    UserFunctionError,
)
from dataservice.runtime.pickling.shipping import dumps, unpickling, users_code_by_value
from dataservice.runtime.pickling.unpicklable import find_unpicklable

_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# In the messages of errors that a function raises which takes values, or several arguments.
_OF_A_DICT: Final = ("'dict'", "positional argument")
# By a part of NumPy's message: for a function that takes a column for a value, or for its own.
_OF_ARRAYS: Final = {
    "truth value of an array": " (the function gets whole columns: write & for and, | for or, and "
    "numpy.where(condition, a, b) for if)",
    "read-only": " (columns cannot be changed: return new ones, as in {**columns, 'x': x + 1})",
}
_NAMED_COLUMNS: Final = 3
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


class Function:
    """An expression, a "module:qualname" reference, or a callable pickled when a plan is encoded.

    `expression` is set for expressions only; other functions are called through `load`.
    """

    __slots__ = ("_blob", "_callable", "_python", "expression", "name", "reference")

    def __init__(
        self,
        *,
        expression: Expression | None = None,
        reference: str | None = None,
        blob: bytes | None = None,
        python: str = _PYTHON,
        name: str = "",
        callable_: Callable[..., Any] | None = None,
    ) -> None:
        self.expression = expression
        self.reference = reference
        self.name = name
        self._blob = blob
        self._python = python
        self._callable = callable_

    @classmethod
    def of(cls, value: Any, operator: str = "the operator") -> Function:
        """Wraps an expression, a callable or a "module:qualname" string.

        Raises InvalidArgumentError for anything else, naming `operator`.
        """
        if isinstance(value, Function):
            return value
        if isinstance(value, Expression):
            return cls(expression=value, name=repr(value))
        if isinstance(value, str):
            _split_reference(value)
            return cls(reference=value, name=value)
        if callable(value):
            return cls(callable_=value, name=_name_of(value))
        raise InvalidTypeError(
            f"{operator} takes a function, an expression such as col('x') > 0, or a "
            f"'module:function' name, got {value!r}"
        )

    @classmethod
    def code_of(cls, value: Any, operator: str, *, result: str = "", remedy: str = "") -> Function:
        """Wraps what `of` does, but for an operator whose function cannot be an expression.

        `result` tells what the function returns, and `remedy` what takes an expression.
        """
        takes = f"{operator} takes a function{result}"
        expression = value.expression if isinstance(value, Function) else value
        if isinstance(expression, Expression):
            raise InvalidTypeError(f"{takes}, not the expression {expression!r}{remedy}")
        if not (callable(value) or isinstance(value, Function | str)):
            raise InvalidTypeError(f"{takes}, or its 'module:function' name, got {value!r}")
        return cls.of(value, operator)

    def pickled(self) -> tuple[bytes, str]:
        """Returns the pickle of the callable, and the Python version that it needs."""
        if self._blob is None:
            self._blob = _pickle(self._callable, self.name)
        return self._blob, self._python

    def load(self, allow_functions: bool) -> Callable[..., Any]:
        """Returns the callable; FailedPreconditionError if it may not or cannot be loaded here."""
        if self._callable is None:
            with unpickling:
                if self.reference is not None:
                    self._callable = _import(self.reference)
                else:
                    self._callable = self._unpickle(allow_functions)
        return self._callable

    def _unpickle(self, allow_functions: bool) -> Callable[..., Any]:
        if not allow_functions:
            raise FailedPreconditionError(
                f"function {self.name!r} may not run here, since this process was started without "
                "pickled functions; use an expression or a 'module:function' name"
            )
        if self._python != _PYTHON:
            raise FailedPreconditionError(
                f"function {self.name!r} was pickled by Python {self._python}, this is Python "
                f"{_PYTHON}; run both sides on the same version, or use a 'module:function' name"
            )
        try:
            loaded = pickle.loads(self._blob or b"")
        except (Exception, SystemExit) as error:
            raise FailedPreconditionError(
                f"function {self.name!r} cannot be loaded here: {type(error).__name__}: {error}; "
                "the modules that it uses must be installed on data workers too"
            ) from error
        if not callable(loaded):
            raise InvalidArgumentError(f"function {self.name!r} holds a {type(loaded).__name__}")
        return loaded


def call_user(
    function: Callable[..., Any], argument: Any, operator: str, location: Callable[[], str]
) -> Any:
    """Calls a user's function; its exception becomes a UserFunctionError with its frames only.

    A Numba-compiled function cannot take a dict: it gets the columns that its parameters name. If
    there is one parameter and one column, it gets that column, whatever the names.
    """
    try:
        if isinstance(argument, dict):
            source = _compiled_source(function)
            if source is not None:
                return _call_compiled(function, source, argument)
        return function(argument)
    except (UserFunctionError, TouchedError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit() would end a thread that others wait for
        error = error.with_traceback(_without_callers(error.__traceback__))
        text = "".join(traceback.format_exception(error))
        where, message = location(), _message_of(error)
        raise UserFunctionError(
            f"the function given to {operator} raised {type(error).__name__}: {message}"
            + _what_it_gets(error, message, argument)
            + (f"\nwhile processing {where}" if where else "")
            + f"\nits traceback:\n{text}",
            user_traceback=text,
            source=where,
        ) from error


def _message_of(error: BaseException) -> str:
    """Returns the text of a user's exception, whose class may have a `__str__` that fails."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as in Python's own tracebacks


def _what_it_gets(error: BaseException, message: str, argument: Any) -> str:
    """Returns a hint for a function that seems to expect values rather than a dict of columns."""
    if not isinstance(argument, dict):
        return ""
    if isinstance(error, TypeError) and any(text in message for text in _OF_A_DICT):
        names = ", ".join(repr(name) for name in list(argument)[:_NAMED_COLUMNS])
        return f" (the function gets one dict of arrays by column, here with {names})"
    if isinstance(error, ValueError) and _has_arrays_only(argument):
        return next((hint for text, hint in _OF_ARRAYS.items() if text in message), "")
    return ""


def _has_arrays_only(columns: Mapping[str, Any]) -> bool:
    """False for a row, whose values are not all arrays."""
    return all(isinstance(values, np.ndarray) for values in columns.values())


def _without_callers(trace: TracebackType | None) -> TracebackType | None:
    """Returns the traceback from the first frame on that is not of this package."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def call_user_per_row(
    function: Callable[..., Any], rows: Iterable[Any], operator: str, location: Callable[[], str]
) -> list[Any]:
    """Calls `function` for each of `rows` in turn, with the errors of `call_user`."""
    return call_user(functools.partial(_map_rows, function), rows, operator, location)


def _map_rows(function: Callable[..., Any], rows: Iterable[Any]) -> list[Any]:
    return [function(row) for row in rows]


def _compiled_source(function: Any) -> Any:
    """Returns the Python source function of a Numba njit or (gu)vectorize function, or None."""
    dispatcher = getattr(function, "_dispatcher", function)
    return getattr(dispatcher, "py_func", None)


def _call_compiled(function: Any, source: Any, columns: dict[str, Any]) -> Any:
    code = source.__code__
    # The last parameters of a guvectorize source function are its results; `nin` excludes them.
    names = code.co_varnames[: getattr(function, "nin", code.co_argcount)]
    if getattr(function, "is_dynamic", False):
        raise InvalidArgumentError(
            f"{source.__name__} was given to numba.guvectorize without types, so Numba cannot make "
            'its result: name them, as in @guvectorize(["void(float64[:], float64[:])"], '
            '"(n)->(n)")'
        )
    if len(names) == len(columns) == 1:
        names = tuple(columns)
    for name in names:
        if name not in columns:
            raise SchemaError(
                f"the compiled function's parameter {name!r} names no column; "
                f"the columns are {list(columns)}"
            )
        if isinstance(columns[name], UntouchedColumn):
            columns[name].touch()
    result = function(*(columns[name] for name in names))
    return result._asdict() if hasattr(result, "_asdict") else result


def _name_of(value: Callable[..., Any]) -> str:
    if isinstance(value, functools.partial):
        return f"partial({_name_of(value.func)})"
    module = getattr(value, "__module__", None) or type(value).__module__
    return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _split_reference(reference: str) -> tuple[str, str]:
    module, separator, qualname = reference.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        raise InvalidArgumentError(
            f"function name {reference!r} is not of the form 'module:function'; what is computed "
            "of columns is written without quotes, as dataservice.col('price') > 0"
        )
    return module, qualname


def _import(reference: str) -> Callable[..., Any]:
    module_name, qualname = _split_reference(reference)
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SystemExit) as error:
        raise FailedPreconditionError(
            f"function {reference!r} cannot be imported here: {error}; its module must be "
            "installed on data workers too"
        ) from error
    if not callable(found):
        raise InvalidArgumentError(f"{reference!r} names a {type(found).__name__}, not a function")
    return found


def _pickle(function: Any, name: str) -> bytes:
    with users_code_by_value():
        try:
            return dumps(function)
        except Exception as error:
            reason = find_unpicklable(function, error, dumps)
            raise InvalidArgumentError(
                f"function {name!r} cannot be sent to data workers: {reason}; what belongs to this "
                "process (locks, connections, servers, iterators) is made inside of the function"
            ) from error
