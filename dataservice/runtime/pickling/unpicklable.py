"""Finds the value that keeps a function from being pickled, for the error message.

Used only after pickling has failed. Looks only into functions, containers and plain objects; a type
with a pickle form of its own is not looked into, since the error of that form explains itself.
Knows nothing of what functions are for. Invariant: a value that is named cannot be pickled.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

# Deep enough for usual programs; also ends the search in a structure that contains itself.
_DEPTH_MAX: Final = 8
_ITEMS_MAX: Final = 1000


class UnpicklablePart(NamedTuple):
    """A value that cannot be pickled; `path` is its name in a program, "" for the whole value."""

    path: str
    value: Any
    error: Exception

    def __str__(self) -> str:
        held = f"it holds {self.path}, of type {type(self.value).__name__}: " if self.path else ""
        return f"{held}{self.error}"


def find_unpicklable(
    value: Any, error: Exception, dumps: Callable[[Any], object], *, name: str = "self"
) -> UnpicklablePart:
    """Returns the innermost part of `value` for which `dumps` fails.

    `error` is the error of `dumps(value)`. `name` is the name of `value` in a program, from which
    the names of its parts are formed.
    """
    found = UnpicklablePart("", value, error)
    seen = {id(value)}
    for _ in range(_DEPTH_MAX):
        for path, part in itertools.islice(_parts(found.value, found.path or name), _ITEMS_MAX):
            failure = None if id(part) in seen else _failure(part, dumps)
            if failure is not None:
                found = UnpicklablePart(path, part, failure)
                seen.add(id(part))
                break
        else:
            break
    return found


def _failure(value: Any, dumps: Callable[[Any], object]) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:
        return error
    return None


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the parts of `value`, each with its name, formed from `path`."""
    if isinstance(value, functools.partial):
        yield path, value.func
        yield from _parts(value.args, "args")
        yield from _parts(value.keywords, "keywords")
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{path}[{key!r}]", part
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(value):
            yield f"{path}[{index}]", part
    elif _is_plain(type(value)):
        for name, part in vars(value).items():
            yield f"{path}.{name}", part


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    known = function.__globals__
    for name in sorted(_global_names(code)):
        if name in known and not isinstance(known[name], types.ModuleType):
            yield name, known[name]
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    yield from zip(code.co_varnames[first : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: types.CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _is_plain(kind: type) -> bool:
    """True if objects of this type are pickled by their `vars`."""
    forms = ("__reduce__", "__reduce_ex__", "__getstate__")
    own = any(getattr(kind, form, None) is not getattr(object, form, None) for form in forms)
    return not own and kind.__dictoffset__ != 0
