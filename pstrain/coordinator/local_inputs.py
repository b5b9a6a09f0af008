"""RemoteValues among the arguments of a function that runs in this process, wherever they are.

Knows no coordinator. Invariant: an argument that holds no RemoteValue is passed on as it is; one
that does is copied, as on its way to a trainer, and never changed.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any, Final, cast

from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import ClosureInputError, InvalidArgumentError

_LEAVES: Final = (type(None), bool, int, float, str, bytes, type, ModuleType, FunctionType)
# What objects of these packages hold is their own, and never a program's RemoteValue.
_PACKAGES: Final = ("dataservice", "pstrain", "numpy", "pyarrow")


def with_values(arguments: Any, closure: int) -> Any:
    """Returns the arguments with the values of RemoteValues.

    ClosureInputError, naming ``closure``, if one has no value; InvalidArgumentError if what holds
    one cannot be copied.
    """
    values, others = _found(arguments)
    if not values:
        return arguments
    # By id, as deepcopy takes what is known of copies: all other objects are their own.
    known = {id(each): each for each in others} | {
        id(each): _value_of(each, closure) for each in values
    }
    try:
        return copy.deepcopy(arguments, known)
    except Exception as error:
        raise InvalidArgumentError(
            f"an argument that holds a RemoteValue is copied, and this one cannot be: {error}; "
            "give the RemoteValue by itself, or fetch() its value first"
        ) from error


def _value_of(value: RemoteValue, closure: int) -> Any:
    try:
        return value.fetch()
    except Exception as error:
        raise ClosureInputError(
            f"closure {closure} needs the value of closure {value.closure}, which has none: "
            f"{type(error).__name__}: {error}"
        ) from error


def _found(arguments: Any) -> tuple[list[RemoteValue], list[Any]]:
    """Returns the RemoteValues within ``arguments``, and the objects that hold none."""
    values: list[RemoteValue] = []
    seen = {id(arguments): arguments}
    holders: dict[int, list[int]] = {}
    left = [arguments]
    while left:
        each = left.pop()
        for part in _parts(each):
            if isinstance(part, _LEAVES):
                continue
            key = id(part)
            holders.setdefault(key, []).append(id(each))
            if key not in seen:
                seen[key] = part
                (values if isinstance(part, RemoteValue) else left).append(part)
    if not values:
        return [], []
    copied = {id(value) for value in values}
    rising = list(copied)
    while rising:
        above = [each for each in holders.get(rising.pop(), ()) if each not in copied]
        copied.update(above)
        rising += above
    return values, [each for key, each in seen.items() if key not in copied]


def _parts(value: Any) -> Iterable[Any]:
    """Returns what a container or an object of the program's own classes holds."""
    kind: Any = type(value)
    if kind is tuple or kind is list:
        return cast("Iterable[Any]", value)
    if kind is dict:
        return [*value, *value.values()]
    items: list[Any] = []
    if isinstance(value, dict):
        items = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        items = [*value]
    attributes = getattr(value, "__dict__", None)
    if attributes and not _is_of_packages(kind):
        items += attributes.values()
    return items + [getattr(value, name) for name in _slots(kind) if hasattr(value, name)]


@functools.lru_cache(1024)
def _is_of_packages(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES


@functools.lru_cache(1024)
def _slots(kind: type) -> tuple[str, ...]:
    """Returns the names of the attributes that objects of a class have beside ``__dict__``."""
    if _is_of_packages(kind):
        return ()
    found: list[str] = []
    for cls in kind.__mro__:
        names = cls.__dict__.get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
