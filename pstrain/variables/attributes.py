"""The variables that an object reaches by its attributes, as Keras finds those of a model.

Reads no values. Invariant: a variable comes once, where it is reached first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Key, has_variables, key_of


def reached(start: Any) -> list[BaseVariable]:
    """Of variables, and of what has ``saved_variables``, as layers do, in lists and dicts too."""
    found: dict[Key, BaseVariable] = {}
    for variable in _walk(start):
        found.setdefault(key_of(variable), variable)
    return list(found.values())


def has_within(value: Any, sought: object) -> bool:
    """Whether ``sought`` is among the attributes of an object of variables, or of such in it."""
    seen: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        if each is sought:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            left += _parts(each)
    return False


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    return list(vars(value).values()) if has_variables(value) and hasattr(value, "__dict__") else []


def _walk(value: Any) -> Iterator[BaseVariable]:
    if isinstance(value, BaseVariable):
        # What others were joined to is a view of them.
        yield from getattr(value.parameters, "parts", (value,))
    elif hasattr(type(value), "saved_variables"):
        yield from value.saved_variables
    elif isinstance(value, Mapping):
        yield from _walk(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
