"""Shapes that JSON values may have to fit, and what says which value does not.

Pure: knows JSON, no kind of request. Invariant: a shape finds the first value that does not fit,
and reads nothing that it has not looked at before; fields that it does not name are let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from dataservice.runtime.arguments import in_words

INTEGER_MAX: Final = (1 << 63) - 1


class Fault(NamedTuple):
    """A value that does not fit, where it is, as in ``items[0][2]``, and what was wanted there."""

    place: str
    value: Any
    wanted: str

    def inside(self, place: str) -> Fault:
        """As seen from what holds it there."""
        return self._replace(place=place + self.place)


Shape = Callable[[Any], Fault | None]


def of_type(kind: type, wanted: str) -> Shape:
    """Of just this type: a bool is no int."""

    def find(value: Any) -> Fault | None:
        return None if type(value) is kind else Fault("", value, wanted)

    return find


def integer(least: int) -> Shape:
    """From ``least`` to what 64 bits hold."""

    def find(value: Any) -> Fault | None:
        if type(value) is int and least <= value <= INTEGER_MAX:
            return None
        return Fault("", value, f"an integer of at least {least}")

    return find


def number(value: Any) -> Fault | None:
    """A shape: an integer that 64 bits hold, a float or a bool."""
    is_number = type(value) in (float, bool) or (type(value) is int and abs(value) <= INTEGER_MAX)
    return None if is_number else Fault("", value, "a number")


def one_of(*choices: str) -> Shape:
    """One of these texts."""

    def find(value: Any) -> Fault | None:
        is_known = type(value) is str and value in choices
        return None if is_known else Fault("", value, in_words(choices))

    return find


def or_none(shape: Shape) -> Shape:
    """The same, or null."""
    return lambda value: None if value is None else shape(value)


def list_of(shape: Shape) -> Shape:
    """A list whose values all fit."""

    def find(value: Any) -> Fault | None:
        if type(value) is not list:
            return Fault("", value, "a list")
        for index, each in enumerate(value):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def row(*shapes: Shape) -> Shape:
    """A list of as many values, each of which fits its shape."""

    def find(value: Any) -> Fault | None:
        if type(value) is not list or len(value) != len(shapes):
            return Fault("", value, f"a list of {len(shapes)}")
        for index, (shape, each) in enumerate(zip(shapes, value, strict=True)):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def integer_rows(count: int, least: int = 0) -> Shape:
    """Lists of so many integers of at least this; they are many, and come with every step."""
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
    """An object whose values all fit, whatever their names are."""

    def find(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault("", value, "an object")
        for name, each in value.items():
            if (fault := shape(each)) is not None:
                return fault.inside(f".{name}")
        return None

    return find


def object_of(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with what is ``needed``; what is ``optional`` fits where it is there."""

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
