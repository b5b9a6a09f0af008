"""Checks of arguments of public functions: choices among names, integers, numbers, paths.

Pure. Knows no argument by name. Invariant: an error names the argument, its value and the allowed
values, and if the value is nearly one of several names, it suggests that name.
"""

from __future__ import annotations

import math
import numbers
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from enum import EnumType
from typing import Any

from dataservice.errors import InvalidArgumentError, InvalidTypeError


def check_choice(what: str, value: object, choices: Sequence[str | None]) -> None:
    """Raises InvalidArgumentError, which names ``what``, unless the value is one of ``choices``."""
    if not isinstance(value, str | None) or value not in choices:
        raise InvalidArgumentError(
            f"{what} must be one of {in_words(choices)}, got {value!r}{nearest(value, choices)}"
        )


def in_words(choices: Iterable[str | None]) -> str:
    """Returns the choices as text, such as ``'a', 'b' or None``."""
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}" if most else last


def nearest(value: object, choices: Iterable[object], form: str = "{!r}") -> str:
    """Returns ``; did you mean 'x'?`` for the choice that a value resembles, "" if there is none.

    ``form`` is the format of that choice.
    """
    # Imported here, since only errors need it.
    from difflib import get_close_matches

    by_name = {str(choice).lower(): choice for choice in choices}
    found = get_close_matches(str(value).lower(), by_name, n=1)
    return f"; did you mean {form.format(by_name[found[0]])}?" if found else ""


class HintingEnumType(EnumType):
    """The metaclass of public enumerations: the error for an unknown member lists the members."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(cls._unknown(name), name=name, obj=cls)

    def __getitem__(cls, name: str) -> Any:
        if name not in cls.__members__:
            raise KeyError(cls._unknown(name))
        return super().__getitem__(name)

    def _unknown(cls, name: object) -> str:
        known = list(cls.__members__)
        meant = nearest(name, known, f"{cls.__name__}.{{}}")
        return f"{cls.__name__} has no {name!r}; there are {', '.join(known)}{meant}"


def is_integer(value: object) -> bool:
    """True for integers, including NumPy's, but not for a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integer_at_least(value: Any, minimum: int, what: str) -> int:
    """Returns `value` as an int; raises InvalidArgumentError for less, or if it is no integer."""
    known = {0: "a non-negative integer", 1: "a positive integer"}
    wanted = known.get(minimum, f"an integer of at least {minimum}")
    if not is_integer(value):
        raise InvalidTypeError(f"{what} must be {wanted}, got {value!r}")
    if value < minimum:
        raise InvalidArgumentError(f"{what} must be {wanted}, got {value}")
    return int(value)


def check_optional(minimum: int, **values: Any) -> None:
    """Raises InvalidArgumentError unless each value is None or an integer from ``minimum`` on."""
    for name, value in values.items():
        if value is not None:
            integer_at_least(value, minimum, name)


def sizes_of(values: Any, what: str, *, least: int = 0) -> tuple[int, ...]:
    """Returns a sequence of positive integers as a tuple; it must have at least ``least`` items."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidTypeError(f"{what} must be a sequence of positive integers, got {values!r}")
    sizes = tuple(integer_at_least(value, 1, f"each of {what}") for value in values)
    if len(sizes) < least:
        raise InvalidArgumentError(f"{what} must be at least {least}, got {list(sizes)}")
    return sizes


def positive(value: Any, what: str) -> float:
    """Returns `value` as a float; raises InvalidArgumentError unless it is finite and above 0."""
    check_number(what, value)
    if value <= 0:
        raise InvalidArgumentError(f"{what} must be positive, got {value}")
    return float(value)


def non_negative(value: Any, what: str) -> float:
    """Returns `value` as a float; raises InvalidArgumentError unless it is finite and >= 0."""
    check_number(what, value)
    if value < 0:
        raise InvalidArgumentError(f"{what} must not be negative, got {value}")
    return float(value)


def limit_s(value: Any, what: str = "timeout") -> float | None:
    """Returns the seconds that a wait may take, None (also for infinity) for no limit.

    Raises InvalidArgumentError for anything else.
    """
    if value is None:
        return None
    wanted = "must be seconds from 0 on, or None to wait without a limit"
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{what} {wanted}, got {value!r}")
    limit = as_float(value)
    if limit == math.inf:
        return None
    if not limit >= 0:
        raise InvalidArgumentError(f"{what} {wanted}, got {value}")
    return min(limit, threading.TIMEOUT_MAX)


def as_float(value: Any) -> float:
    """Returns a real number as a float, which is infinite for an integer beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def path_of(value: Any, what: str) -> str:
    """Returns a path on this machine as text; raises InvalidArgumentError if empty or a URL."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise InvalidTypeError(f"{what} must be a path, as text or a pathlib.Path, got {value!r}")
    if not path:
        raise InvalidArgumentError(f"{what} must not be empty; '.' is the current directory")
    if "://" in path:
        # Taken as a path, a URL would name a folder below the current one.
        raise InvalidArgumentError(
            f"{what} must be a path in a file system of this machine, got the URL {path!r}: mount "
            "the store and give the path there, or copy to it what was written"
        )
    return path


def check_text(what: str, value: Any) -> None:
    """Raises InvalidArgumentError, which names ``what``, unless the value is a non-empty text."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{what} must be text, got {value!r}")
    if not value:
        raise InvalidArgumentError(f"{what} must not be empty")


def check_true_or_false(**values: Any) -> None:
    """Raises InvalidTypeError unless each value is a bool."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidTypeError(f"{name} must be True or False, got {value!r}")


def check_callable(what: str, value: Any, *, optional: bool = False) -> None:
    """Raises InvalidTypeError unless the value is callable; ``optional`` allows None too."""
    if not callable(value) and not (optional and value is None):
        wanted = "a function or None" if optional else "a function"
        raise InvalidTypeError(f"{what} must be {wanted}, got {value!r}")


def check_number(what: str, value: Any) -> None:
    """Raises InvalidArgumentError, which names ``what``, unless the value is a finite number."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{what} must be a number, got {value!r}")
    try:
        is_finite = math.isfinite(value)
    except OverflowError as error:
        # Not shown: it has hundreds of digits, and Python may refuse to write them.
        most = f"at most {sys.float_info.max:.2g}"
        raise InvalidArgumentError(f"{what} must be {most} in size, got a larger number") from error
    if not is_finite:
        raise InvalidArgumentError(f"{what} must be finite, got {value}")
