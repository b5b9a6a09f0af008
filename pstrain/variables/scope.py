"""Where variables go that are made now: to what the entered scope says, else into this process.

Knows no kind of variable. Invariant: a scope reaches the thread that entered it only.
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
    """Where new variables go."""

    @property
    def parameters(self) -> Parameters:
        """Holds the values."""

    def next_id(self) -> int:
        """An id that no other variable of these parameters has."""

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        """The parameter server of each shard, in row order; one entry: not cut."""

    @property
    def num_workers(self) -> int:
        """Trainers that will use the variables: as many copies a per-worker variable has."""

    def created(self, variable: Any) -> None:
        """Told of each variable made under this placement."""


class LocalPlacement:
    """Variables of this process, never cut."""

    def __init__(self, parameters: LocalParameters | None = None) -> None:
        self.parameters = LocalParameters() if parameters is None else parameters

    def next_id(self) -> int:
        return self.parameters.next_id()

    @property
    def num_workers(self) -> int:
        return 1

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0]

    def created(self, variable: Any) -> None:
        """Local variables need no list: nobody has to restore them."""


_placement: ContextVar[Placement | None] = ContextVar("pstrain_placement", default=None)


@functools.cache
def _process_placement() -> LocalPlacement:
    return LocalPlacement()


def current_placement() -> Placement:
    """Of the scope that is entered, else the one of this process."""
    return _placement.get() or _process_placement()


def is_placed() -> bool:
    """Whether this thread has entered a scope that says where variables go."""
    return _placement.get() is not None


@contextmanager
def placement_scope(placement: Placement) -> Iterator[None]:
    """Variables created inside, in this thread, go where ``placement`` says."""
    reset = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(reset)


@contextmanager
def local_parameters() -> Iterator[LocalParameters]:
    """Scope whose variables live in parameters of their own, freed with the last variable."""
    placement = LocalPlacement()
    with placement_scope(placement):
        yield placement.parameters
