"""Which variables a program still refers to, so that the values of the others can be dropped.

A variable has many handles, and lives as long as one of them, or a function that was sent with it.
Knows specs and handles; drops nothing itself. Invariant: as a life may end in the middle of a
garbage collection, in any thread, its end is only noted there: nothing is locked, sent or freed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from pstrain.vocabulary import VariableSpec


class Lifetime:
    """Exists as long as something in this process refers to the variable of ``spec``."""

    __slots__ = ("__weakref__", "first_handle", "kind", "spec")

    def __init__(self, spec: VariableSpec, kind: type[Any]) -> None:
        self.spec = spec
        self.kind = kind
        """The class of the handle that the variable was made with."""
        self.first_handle: weakref.ref[Any] | None = None
        """That handle, as long as it is referred to; None while the variable is being made."""


class Lifetimes:
    """The lifetimes of the variables that this process has made in one place. Thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[int, weakref.ref[Lifetime]] = {}
        self._ended: deque[VariableSpec] = deque()

    def begin(self, spec: VariableSpec, kind: type[Any]) -> Lifetime:
        """Begins the lifetime of a new variable, which the caller holds until a handle does."""
        lifetime, ended = Lifetime(spec, kind), self._ended
        self._begun[spec.id] = weakref.ref(lifetime, lambda _: ended.append(spec))
        return lifetime

    def find(self, variable: int) -> Lifetime | None:
        """Returns the lifetime of the variable with this id; None if it has ended, or is unknown.

        Variables that another process has made are unknown.
        """
        reference = self._begun.get(variable)
        return None if reference is None else reference()

    def living(self) -> list[Lifetime]:
        """Returns the lifetimes of the variables that are made, in the order of their beginning."""
        found = [reference() for reference in self._begun.copy().values()]
        return [each for each in found if each is not None and each.first_handle is not None]

    def take_ended(self) -> list[VariableSpec]:
        """Returns, once, the variables whose lifetimes have ended."""
        ended = []
        while self._ended:
            spec = self._ended.popleft()
            self._begun.pop(spec.id, None)
            ended.append(spec)
        return ended

    def put_back(self, ended: Iterable[VariableSpec]) -> None:
        """Has :meth:`take_ended` return these again: they could not be dropped."""
        self._ended.extend(ended)
