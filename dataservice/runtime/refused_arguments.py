"""Refusing keyword arguments of another library's callables, with what to write instead.

Knows no argument by name: the texts are those of its callers. Invariant: a call without such an
argument is passed on as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from dataservice.errors import InvalidTypeError

Called = TypeVar("Called", bound=Callable[..., Any])


def refuse_arguments(
    what: str, remedies: Mapping[str, str], *, beyond: str = ""
) -> Callable[[Called], Called]:
    """Returns a decorator: the callable ``what`` raises InvalidTypeError for these arguments.

    ``remedies``: what to write instead, by argument. ``beyond``: the argument that is reported if
    there are more positional arguments than the callable takes.
    """

    def decorate(function: Called) -> Called:
        most = function.__code__.co_argcount if beyond else sys.maxsize  # type: ignore[attr-defined]

        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            for name in arguments if len(args) <= most else (beyond,):
                if name in remedies:
                    raise InvalidTypeError(f"{what} takes no argument {name!r}: {remedies[name]}")
            return function(*args, **arguments)

        return cast("Called", call)

    return decorate
