"""The names of variables in a checkpoint: one per path to a variable, the first stores its value.

Reads no values and knows nothing of files. Invariant: a variable is stored once, however many of
the saved objects reach it, and can be found under each of its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pstrain.errors import InvalidTypeError
from pstrain.variables.base import BaseVariable
from pstrain.variables.parameters import Parameters
from pstrain.vocabulary import VariableSpec

Key = tuple[int, int]


class Named(NamedTuple):
    """A variable and all of its names, in the order of the objects that reach it."""

    variable: BaseVariable
    names: list[str]

    def found_as(self, stored: Mapping[str, Any]) -> str:
        """Returns the first of the names that is in ``stored``, or the first name if none is."""
        return next((name for name in self.names if name in stored), self.names[0])


class Group(NamedTuple):
    """The variables that share one set of parameters, each by one of its names."""

    parameters: Parameters
    specs: dict[str, VariableSpec]


def key_of(variable: BaseVariable) -> Key:
    """Returns a key that is equal for all handles of one variable, and for its parts."""
    return id(variable.parameters), variable.spec.id


def parts_of(variable: BaseVariable) -> Sequence[BaseVariable]:
    """Returns the parts of a joined variable, which has no values of its own; else nothing."""
    return getattr(variable.parameters, "parts", ())


def has_variables(value: Any) -> bool:
    """True if ``value`` is an object that has variables, rather than a variable."""
    return hasattr(value, "variables") and not isinstance(value, BaseVariable)


def variables_of(value: Any) -> Sequence[BaseVariable]:
    """Returns the variables of an object that a checkpoint saves.

    ``saved_variables``, which may be more than the object uses itself, comes before ``variables``.
    """
    saved = getattr(value, "saved_variables", None)
    return value.variables if saved is None else saved


def named(objects: Mapping[str, Any]) -> list[Named]:
    """Returns the variables of all objects, each variable once."""
    found: dict[Key, Named] = {}
    for prefix, value in objects.items():
        for name, variable in _of_object(prefix, value):
            found.setdefault(key_of(variable), Named(variable, [])).names.append(name)
    return list(found.values())


def wholes(objects: Mapping[str, Any]) -> dict[Key, BaseVariable]:
    """Maps each variable that users have joined with others to the joined variable."""
    members = (v for prefix, value in objects.items() for v in _members(prefix, value))
    return {key_of(part): whole for whole in members for part in _own(parts_of(whole))}


def joined(objects: Mapping[str, Any]) -> dict[str, list[Named]]:
    """Returns the parts, in row order, of each joined variable, by the name of the whole.

    Leaves out a joined variable if one of its parts is not a whole variable, but some of its rows.
    """
    by_key = {key_of(each.variable): each for each in named(objects)}
    found: dict[str, list[Named]] = {}
    for prefix, value in objects.items():
        for member in _members(prefix, value):
            parts = list(_own(parts_of(member)))
            name = prefix if value is member else f"{prefix}/{member.name}"
            if parts and sum(part.spec.rows for part in parts) == member.spec.rows:
                found.setdefault(name, [by_key[key_of(part)] for part in parts])
    return found


def grouped(variables: Iterable[Named], stored: Mapping[str, Any] | None = None) -> list[Group]:
    """Groups variables by parameters, under their names in ``stored`` or their first names."""
    groups: dict[int, Group] = {}
    for each in variables:
        name = each.names[0] if stored is None else each.found_as(stored)
        parameters = each.variable.parameters
        group = groups.setdefault(id(parameters), Group(parameters, {}))
        group.specs[name] = each.variable.spec
    return list(groups.values())


def aliases(variables: Iterable[Named]) -> dict[str, str]:
    """Maps each further name of a variable to the name under which its values are stored."""
    return {name: each.names[0] for each in variables for name in each.names[1:]}


def _of_object(prefix: str, value: Any) -> Iterator[tuple[str, BaseVariable]]:
    """Yields each variable as ``prefix/name``, with ``#2`` and so on appended to repeated names."""
    if isinstance(value, BaseVariable) and not parts_of(value):
        yield prefix, value
        return
    seen: dict[str, int] = {}
    for variable in _own(_members(prefix, value)):
        count = seen[variable.name] = seen.get(variable.name, 0) + 1
        yield f"{prefix}/{variable.name}" + (f"#{count}" if count > 1 else ""), variable


def _members(prefix: str, value: Any) -> Sequence[BaseVariable]:
    if isinstance(value, BaseVariable):
        return [value]
    return _checked(prefix, value) if has_variables(value) else ()


def _own(variables: Iterable[BaseVariable]) -> Iterator[BaseVariable]:
    for variable in variables:
        parts = parts_of(variable)
        yield from _own(parts) if parts else (variable,)


def _checked(prefix: str, value: Any) -> Sequence[BaseVariable]:
    found = variables_of(value)
    if not isinstance(found, list | tuple) or not all(isinstance(v, BaseVariable) for v in found):
        raise InvalidTypeError(
            f"{prefix}={type(value).__name__}: its variables must be a list of ps.Variable, got "
            f"{found!r:.200}"
        )
    return found
