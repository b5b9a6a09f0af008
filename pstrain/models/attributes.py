"""The variables that an object reaches by its attributes, as Keras finds those of a model.

Reads no values. Invariant: a variable comes once, where it is reached first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pstrain.base_variable import BaseVariable
from pstrain.layers.base import Layer
from pstrain.layers.online import OnlineLookup
from pstrain.variable_names import Key, key_of


def reached(start: Any) -> list[BaseVariable]:
    """Those of variables, layers and lookups, in lists and dicts too; nothing of other objects."""
    found: dict[Key, BaseVariable] = {}
    for variable in _walk(start):
        found.setdefault(key_of(variable), variable)
    return list(found.values())


def _walk(value: Any) -> Iterator[BaseVariable]:
    if isinstance(value, BaseVariable):
        # What others were joined to is a view of them.
        yield from getattr(value.parameters, "parts", (value,))
    elif isinstance(value, Layer):
        yield from value.variables
        yield from _walk(vars(value))
    elif isinstance(value, OnlineLookup):
        yield from value.variables
    elif isinstance(value, Mapping):
        yield from _walk(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
