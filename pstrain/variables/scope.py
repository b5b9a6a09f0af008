"""Where new variables are placed: as the entered scope says, else in this process.

Knows no kind of variable. Invariant: a scope affects only the thread that entered it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from pstrain.variables.local_parameters import LocalParameters
from pstrain.variables.parameters import Parameters


class Placement(Protocol):
    """The rule by which new variables are cut into shards and placed."""

    @property
    def parameters(self) -> Parameters:
        """The parameters that hold the values."""

    def next_id(self) -> int:
        """Returns an id that no other variable of these parameters has."""

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        """Returns the parameter server of each shard, in row order; one entry if it is not cut."""

    @property
    def num_workers(self) -> int:
        """The number of trainers, which is also the number of copies of a per-worker variable."""

    def created(self, variable: Any) -> None:
        """Called with each variable that is made under this placement."""


class LocalPlacement:
    """Variables of this process, never cut."""

    def __init__(self) -> None:
        self.parameters = LocalParameters()

    def next_id(self) -> int:
        return self.parameters.next_id()

    @property
    def num_workers(self) -> int:
        return 1

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0]

    def created(self, variable: Any) -> None:
        """Does nothing: local variables are lost with the process, so no list of them is needed."""


class OneServerPlacement:
    """A placement of whole variables on one server, in all else the same as ``placement``."""

    def __init__(self, placement: Placement, server: int) -> None:
        self.parameters = placement.parameters
        self.num_workers = placement.num_workers
        self.next_id, self.created = placement.next_id, placement.created
        self._server = server

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [self._server]


_placement: ContextVar[Placement | None] = ContextVar("pstrain_placement", default=None)


@functools.cache
def _process_placement() -> LocalPlacement:
    return LocalPlacement()


def current_placement() -> Placement:
    """Returns the placement of the scope that this thread is in, else that of this process."""
    return _placement.get() or _process_placement()


def is_placed() -> bool:
    """Whether this thread has entered a scope that says where variables go."""
    return _placement.get() is not None


@contextmanager
def placement_scope(placement: Placement) -> Iterator[None]:
    """Enters a scope in which variables of this thread go where ``placement`` says."""
    reset = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(reset)


@contextmanager
def local_parameters() -> Iterator[LocalParameters]:
    """Enters a scope whose variables have parameters of their own, freed with the last variable."""
    placement = LocalPlacement()
    with placement_scope(placement):
        yield placement.parameters
