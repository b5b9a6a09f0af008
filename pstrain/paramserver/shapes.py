"""Shapes that JSON values have to fit; each reports the first value that does not.

Pure: knows JSON, no kind of request. Invariant: a shape checks each value before it relies on it,
and reports the first value that does not fit; fields that it does not name are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from dataservice.runtime.arguments import in_words

INTEGER_MAX: Final = (1 << 63) - 1


class Fault(NamedTuple):
    """A value that does not fit, its place, such as ``items[0][2]``, and what was wanted there."""

    place: str
    value: Any
    wanted: str

    def inside(self, place: str) -> Fault:
        """Returns the fault as seen from the container that has the value at ``place``."""
        return self._replace(place=place + self.place)


Shape = Callable[[Any], Fault | None]


def of_type(kind: type, wanted: str) -> Shape:
    """Makes a shape for exactly this type: a bool is not an int."""

    def find(value: Any) -> Fault | None:
        return None if type(value) is kind else Fault("", value, wanted)

    return find


def integer(least: int) -> Shape:
    """Makes a shape for integers from ``least`` to the largest that 64 bits hold."""

    def find(value: Any) -> Fault | None:
        if type(value) is int and least <= value <= INTEGER_MAX:
            return None
        return Fault("", value, f"an integer of at least {least}")

    return find


def number(value: Any) -> Fault | None:
    """Finds a fault unless ``value`` is an integer that 64 bits hold, a float or a bool."""
    is_number = type(value) in (float, bool) or (type(value) is int and abs(value) <= INTEGER_MAX)
    return None if is_number else Fault("", value, "a number")


def one_of(*choices: str) -> Shape:
    """Makes a shape for one of these texts."""

    def find(value: Any) -> Fault | None:
        is_known = type(value) is str and value in choices
        return None if is_known else Fault("", value, in_words(choices))

    return find


def or_none(shape: Shape) -> Shape:
    """Makes a shape for null or a value that fits ``shape``."""
    return lambda value: None if value is None else shape(value)


def list_of(shape: Shape) -> Shape:
    """Makes a shape for lists whose values all fit ``shape``."""

    def find(value: Any) -> Fault | None:
        if type(value) is not list:
            return Fault("", value, "a list")
        for index, each in enumerate(value):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def row(*shapes: Shape) -> Shape:
    """Makes a shape for lists with one value per shape, each of which fits its own."""

    def find(value: Any) -> Fault | None:
        if type(value) is not list or len(value) != len(shapes):
            return Fault("", value, f"a list of {len(shapes)}")
        for index, (shape, each) in enumerate(zip(shapes, value, strict=True)):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def integer_rows(count: int, least: int = 0) -> Shape:
    """Makes a shape for lists of lists of ``count`` integers of at least ``least``.

    It is fast if all fit, because such lists are long and come with every step.
    """
    find = list_of(row(*[integer(least)] * count))

    def fit(value: Any) -> bool:
        if type(value) is not list or not {list}.issuperset(map(type, value)):
            return False
        numbers = list(chain.from_iterable(value))
        return (
            {count}.issuperset(map(len, value))
            and {int}.issuperset(map(type, numbers))
            and least <= min(numbers, default=least)
            and max(numbers, default=least) <= INTEGER_MAX
        )

    return lambda value: None if fit(value) else find(value)


def map_of(shape: Shape) -> Shape:
    """Makes a shape for objects whose values all fit ``shape``, whatever their names are."""

    def find(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault("", value, "an object")
        for name, each in value.items():
            if (fault := shape(each)) is not None:
                return fault.inside(f".{name}")
        return None

    return find


def object_of(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """Makes a shape for objects with all ``needed`` fields; ``optional`` ones must fit if given."""

    def find(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault("", value, "an object")
        for name, shape in (optional or {}).items():
            if name in value and (fault := shape(value[name])) is not None:
                return fault.inside(f".{name}")
        for name, shape in needed.items():
            if name not in value:
                return Fault(f".{name}", None, "given")
            if (fault := shape(value[name])) is not None:
                return fault.inside(f".{name}")
        return None

    return find
