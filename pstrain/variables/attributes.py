"""The variables that an object reaches by its attributes, as Keras finds those of a model.

Reads no values. Invariant: a variable comes once, where it is reached first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Key, key_of


def reached(start: Any) -> list[BaseVariable]:
    """Of variables, and of what has ``saved_variables``, as layers do, in lists and dicts too."""
    found: dict[Key, BaseVariable] = {}
    for variable in _walk(start):
        found.setdefault(key_of(variable), variable)
    return list(found.values())


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
