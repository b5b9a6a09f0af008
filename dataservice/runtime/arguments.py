"""What an argument of a public function may be: one of some names, a whole number, a real one.

Pure. Knows no argument by name. Invariant: an error names the argument, its value and what it may
be, and where the value is nearly one of several names, that name.
"""

from __future__ import annotations

import math
import numbers
import os
import threading
from collections.abc import Iterable, Sequence
from enum import EnumType
from typing import Any

from dataservice.errors import InvalidArgumentError, InvalidTypeError


def check_choice(what: str, value: object, choices: Sequence[str | None]) -> None:
    """InvalidArgumentError, naming ``what``, for a value that is none of ``choices``."""
    if not isinstance(value, str | None) or value not in choices:
        raise InvalidArgumentError(
            f"{what} must be one of {in_words(choices)}, got {value!r}{nearest(value, choices)}"
        )


def in_words(choices: Iterable[str | None]) -> str:
    """``'a', 'b' or None``."""
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}" if most else last


def nearest(value: object, choices: Iterable[object], form: str = "{!r}") -> str:
    """``; did you mean 'x'?``, of the choice that a value resembles; nothing where none is near.

    ``form`` says how that choice is written.
    """
    # Only for errors: few programs ever need it.
    from difflib import get_close_matches

    by_name = {str(choice).lower(): choice for choice in choices}
    found = get_close_matches(str(value).lower(), by_name, n=1)
    return f"; did you mean {form.format(by_name[found[0]])}?" if found else ""


class Choices(EnumType):
    """Of enumerations that users write out: an unknown member is told what there is."""

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
    """Whether it is one, NumPy's among them; a bool is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integer_at_least(value: Any, minimum: int, what: str) -> int:
    """`value` as an int; InvalidArgumentError, naming `what`, for anything else or less."""
    known = {0: "a non-negative integer", 1: "a positive integer"}
    wanted = known.get(minimum, f"an integer of at least {minimum}")
    if not is_integer(value):
        raise InvalidTypeError(f"{what} must be {wanted}, got {value!r}")
    if value < minimum:
        raise InvalidArgumentError(f"{what} must be {wanted}, got {value}")
    return int(value)


def check_optional(minimum: int, **values: Any) -> None:
    """InvalidArgumentError for what is neither None nor an integer of at least ``minimum``."""
    for name, value in values.items():
        if value is not None:
            integer_at_least(value, minimum, name)


def sizes_of(values: Any, what: str, *, least: int = 0) -> tuple[int, ...]:
    """A sequence of positive integers as a tuple, of at least so many."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidTypeError(f"{what} must be a sequence of positive integers, got {values!r}")
    sizes = tuple(integer_at_least(value, 1, f"each of {what}") for value in values)
    if len(sizes) < least:
        raise InvalidArgumentError(f"{what} must be at least {least}, got {list(sizes)}")
    return sizes


def positive(value: Any, what: str) -> float:
    """`value` as a float; InvalidArgumentError for 0, less, infinite or no number."""
    check_number(what, value)
    if value <= 0:
        raise InvalidArgumentError(f"{what} must be positive, got {value}")
    return float(value)


def non_negative(value: Any, what: str) -> float:
    """`value` as a float; InvalidArgumentError for a negative one, infinite or no number."""
    check_number(what, value)
    if value < 0:
        raise InvalidArgumentError(f"{what} must not be negative, got {value}")
    return float(value)


def limit_s(value: Any, what: str = "timeout") -> float | None:
    """Seconds that a wait may take, None for no limit; InvalidArgumentError for anything else."""
    if value is None or value == math.inf:
        return None
    wanted = "must be seconds from 0 on, or None to wait without a limit"
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{what} {wanted}, got {value!r}")
    limit = float(value)
    if not limit >= 0:
        raise InvalidArgumentError(f"{what} {wanted}, got {value}")
    return min(limit, threading.TIMEOUT_MAX)


def path_of(value: Any, what: str) -> str:
    """A path of this machine's as text; InvalidArgumentError for an empty one, or a URL."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise InvalidTypeError(f"{what} must be a path, as text or a pathlib.Path, got {value!r}")
    if not path:
        raise InvalidArgumentError(f"{what} must not be empty; '.' is the current directory")
    if "://" in path:
        # As a path, it would be a folder below the current one.
        raise InvalidArgumentError(
            f"{what} must be a path in a file system of this machine, got the URL {path!r}: mount "
            "the store and give the path there, or copy to it what was written"
        )
    return path


def check_text(what: str, value: Any) -> None:
    """InvalidArgumentError, naming ``what``, for what is no text, or an empty one."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{what} must be text, got {value!r}")
    if not value:
        raise InvalidArgumentError(f"{what} must not be empty")


def check_true_or_false(**values: Any) -> None:
    """InvalidArgumentError for what is neither."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidTypeError(f"{name} must be True or False, got {value!r}")


def check_callable(what: str, value: Any, *, optional: bool = False) -> None:
    """InvalidTypeError for what cannot be called; None may be there where it is ``optional``."""
    if not callable(value) and not (optional and value is None):
        wanted = "a function or None" if optional else "a function"
        raise InvalidTypeError(f"{what} must be {wanted}, got {value!r}")


def check_number(what: str, value: Any) -> None:
    """InvalidArgumentError, naming ``what``, for what is no finite number."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{what} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise InvalidArgumentError(f"{what} must be finite, got {value}")
