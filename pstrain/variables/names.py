"""What a checkpoint calls variables: the ways to each, of which the first stores its values.

Reads no values and knows nothing of files. Invariant: a variable is stored once, however many of
the objects that are saved reach it, and found under each of its names.
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
        """The first of its names that a checkpoint has; its first where it has none."""
        return next((name for name in self.names if name in stored), self.names[0])


class Group(NamedTuple):
    """Variables whose values the same parameters hold, each by one of its names."""

    parameters: Parameters
    specs: dict[str, VariableSpec]


def key_of(variable: BaseVariable) -> Key:
    """Equal for handles of one variable, and for its parts."""
    return id(variable.parameters), variable.spec.id


def has_variables(value: Any) -> bool:
    """Whether ``value`` is an object of variables, not one itself."""
    return hasattr(value, "variables") and not isinstance(value, BaseVariable)


def variables_of(value: Any) -> Sequence[BaseVariable]:
    """Those of an object of variables, which may have more than it uses itself."""
    saved = getattr(value, "saved_variables", None)
    return value.variables if saved is None else saved  # type: ignore[no-any-return]


def named(objects: Mapping[str, Any]) -> list[Named]:
    """The variables of all objects, each once."""
    found: dict[Key, Named] = {}
    for prefix, value in objects.items():
        for name, variable in _of_object(prefix, value):
            found.setdefault(key_of(variable), Named(variable, [])).names.append(name)
    return list(found.values())


def wholes(objects: Mapping[str, Any]) -> dict[Key, BaseVariable]:
    """For each variable that users have joined to others, what it is a part of."""
    members = (v for prefix, value in objects.items() for v in _members(prefix, value))
    return {key_of(part): whole for whole in members for part in _own(_joined(whole))}


def joined(objects: Mapping[str, Any]) -> dict[str, list[Named]]:
    """The parts, in row order, of what users have joined, by the name of the whole.

    Without those of which a part is not a variable of its own, but some of its rows.
    """
    by_key = {key_of(each.variable): each for each in named(objects)}
    found: dict[str, list[Named]] = {}
    for prefix, value in objects.items():
        for member in _members(prefix, value):
            parts = list(_own(_joined(member)))
            name = prefix if value is member else f"{prefix}/{member.name}"
            if parts and sum(part.spec.rows for part in parts) == member.spec.rows:
                found.setdefault(name, [by_key[key_of(part)] for part in parts])
    return found


def grouped(variables: Iterable[Named], stored: Mapping[str, Any] | None = None) -> list[Group]:
    """By parameters; under the names that they have in ``stored``, None: their first."""
    groups: dict[int, Group] = {}
    for each in variables:
        name = each.names[0] if stored is None else each.found_as(stored)
        parameters = each.variable.parameters
        group = groups.setdefault(id(parameters), Group(parameters, {}))
        group.specs[name] = each.variable.spec
    return list(groups.values())


def aliases(variables: Iterable[Named]) -> dict[str, str]:
    """For each further name the one under which the values are stored."""
    return {name: each.names[0] for each in variables for name in each.names[1:]}


def _of_object(prefix: str, value: Any) -> Iterator[tuple[str, BaseVariable]]:
    """``prefix/name``, with ``#2`` and so on where a name comes again."""
    if isinstance(value, BaseVariable) and not _joined(value):
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


def _joined(variable: BaseVariable) -> Sequence[BaseVariable]:
    """What others were joined to is a view of them, which has no values of its own."""
    return getattr(variable.parameters, "parts", ())


def _own(variables: Iterable[BaseVariable]) -> Iterator[BaseVariable]:
    for variable in variables:
        parts = _joined(variable)
        yield from _own(parts) if parts else (variable,)


def _checked(prefix: str, value: Any) -> Sequence[BaseVariable]:
    found = variables_of(value)
    if not isinstance(found, list | tuple) or not all(isinstance(v, BaseVariable) for v in found):
        raise InvalidTypeError(
            f"{prefix}={type(value).__name__}: its variables must be a list of ps.Variable, got "
            f"{found!r:.200}"
        )
    return found
