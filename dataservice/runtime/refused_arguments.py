"""Refusing keyword arguments of another library's callables, with what to write instead.

Knows no argument by name: the texts are those of its callers. Invariant: a call without such an
argument, or with one that asks for nothing, is passed on as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sized
from typing import Any, TypeVar, cast

from dataservice.errors import InvalidTypeError

Called = TypeVar("Called", bound=Callable[..., Any])


def refuse_arguments(
    what: str,
    remedies: Mapping[str, str],
    *,
    beyond: str = "",
    twice: str = "",
    asking_by_false: Collection[str] = (),
) -> Callable[[Called], Called]:
    """Returns a decorator: the callable ``what`` raises InvalidTypeError for these arguments.

    ``remedies``: what to write instead, by argument. ``beyond``: the argument that is reported if
    there are more positional arguments than the callable takes; ``twice``: if a collection among
    them is in the place of an argument given by name, since it was meant for that argument.
    An argument that is None or False asks for nothing and is left out, but not one of
    ``asking_by_false``.
    """

    def asks(name: str, value: Any) -> bool:
        return value is not None and (value is not False or name in asking_by_false)

    def decorate(function: Called) -> Called:
        code = function.__code__  # type: ignore[attr-defined]
        most = code.co_argcount if beyond else sys.maxsize

        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            arguments = {n: a for n, a in arguments.items() if n not in remedies or asks(n, a)}
            names = list(arguments) if len(args) <= most else [beyond]
            places = zip(code.co_varnames, args, strict=False)
            if twice and any(n in arguments and isinstance(a, Sized) for n, a in places):
                names = [twice]
            for name in names:
                if name in remedies:
                    raise InvalidTypeError(f"{what} takes no argument {name!r}: {remedies[name]}")
            return function(*args, **arguments)

        return cast("Called", call)

    return decorate
