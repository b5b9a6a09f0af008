"""Reads and assigns several variables together, with few messages instead of one per variable.

Knows variables and their parameters, not how values travel. Invariant: the outcome is that of
reading or assigning each variable by itself, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstrain.variables.base import Array, BaseVariable
from pstrain.variables.parameters import Parameters


def read_together(variables: Sequence[BaseVariable]) -> list[Array]:
    """Returns the values of ``variables`` as new arrays."""
    found: dict[int, Array] = {}
    for parameters, places in _by_parameters(variables):
        values = parameters.read_all([variables[place].spec for place in places])
        found.update(zip(places, values, strict=True))
    return [
        found[place] if place in found else variable.numpy()
        for place, variable in enumerate(variables)
    ]


def assign_together(variables: Sequence[BaseVariable], values: Sequence[Any]) -> None:
    """Assigns each of ``values``, which has the shape of its variable."""
    together: set[int] = set()
    for parameters, places in _by_parameters(variables):
        parameters.assign_all([(variables[place].spec, values[place]) for place in places])
        together.update(places)
    for place, variable in enumerate(variables):
        if place not in together:
            variable.assign(values[place])


def _by_parameters(variables: Sequence[BaseVariable]) -> list[tuple[Parameters, list[int]]]:
    """Returns, for each of the parameters, the places of the whole variables whose values it has.

    Parts of variables and per-worker variables are left out.
    """
    groups: dict[int, tuple[Parameters, list[int]]] = {}
    for place, variable in enumerate(variables):
        if variable.is_whole:
            parameters = variable.parameters
            groups.setdefault(id(parameters), (parameters, []))[1].append(place)
    return list(groups.values())
