"""Finds the variables that an object reaches through its attributes, as Keras does for a model.

Reads no values. Invariant: each variable is listed once, at the place where it is reached first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Key, has_variables, key_of, parts_of


def reached(start: Any) -> list[BaseVariable]:
    """Returns variables in ``start``: in objects with ``saved_variables``, lists and dicts."""
    found: dict[Key, BaseVariable] = {}
    for variable in _walk(start):
        found.setdefault(key_of(variable), variable)
    return list(found.values())


def has_within(value: Any, sought: object) -> bool:
    """True if ``value`` holds ``sought``: in its attributes, or in those of objects it holds.

    Looks only into objects that have variables, and into lists, tuples and mappings.
    """
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
        yield from parts_of(value) or (value,)
    elif hasattr(type(value), "saved_variables"):
        yield from value.saved_variables
    elif isinstance(value, Mapping):
        yield from _walk(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
