"""Rows that count as consumed when they were used, not when they were handed out.

A receipt stands for all rows that made the elements so far; who took an element acknowledges its
receipt when nothing can undo what was done with it. Knows streams and positions, nothing of what is
done. Invariant: a source is told of rows in the order in which it handed them out, each once; one
that a pipeline has read to its end lives on until its rows are acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class HeldSource(ABC):
    """A stream that waits for receipts."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the pipeline has seen its end."""

    @abstractmethod
    def state(self) -> Any:
        """The live position after all that it handed out."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Whether all that it handed out was acknowledged."""

    @abstractmethod
    def let_go(self) -> None:
        """Closes it now, whatever was acknowledged."""


class HeldPosition(ABC):
    """A position in a held source."""

    @property
    @abstractmethod
    def source(self) -> HeldSource:
        """What it is a position of."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Says that all rows before it are used up."""

    @abstractmethod
    def marks(self) -> dict[str, Any] | None:
        """What is to be told of these rows were they lost with this process; JSON-able."""


class Receipt:
    """Stands for the rows of all elements up to one. An older one may be acknowledged later."""

    def __init__(self, positions: list[HeldPosition]) -> None:
        self._positions = positions

    @property
    def is_empty(self) -> bool:
        """Whether no row of a data service is among them."""
        return not self._positions

    def acknowledge(self) -> None:
        """The rows are used up: no reader will ever get them again."""
        for position in self._positions:
            position.acknowledge()

    def marks(self) -> list[dict[str, Any]]:
        """What `dataservice.release_readers` is to be told if this process is lost; JSON-able."""
        marks = (position.marks() for position in self._positions)
        return [mark for mark in marks if mark is not None]


class Holder:
    """The sources of one pipeline that wait for receipts. `owner` speaks for its lost readers."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._sources: list[HeldSource] = []

    def add(self, source: HeldSource) -> None:
        """Another source of the pipeline."""
        self._sources.append(source)

    def receipt(self, state: Any) -> Receipt:
        """For all rows before a state of the pipeline.

        A source that the state no longer speaks of was used up before it. Others may go on after
        their end: they are given what a reader that was lost had left.
        """
        found = list(_positions(state))
        named = [position.source for position in found]
        over = [s for s in self._sources if s.has_ended and s not in named]
        settled = [source for source in over if source.is_settled()]
        self._sources = [s for s in self._sources if s not in settled]
        return Receipt([*found, *(s.state() for s in over if s not in settled)])

    @property
    def services(self) -> list[str]:
        """Targets of the services that its sources read."""
        return sorted({getattr(source, "target", "") for source in self._sources} - {""})

    def let_go(self) -> None:
        """Closes the sources; what was not acknowledged goes to other readers."""
        for source in self._sources:
            source.let_go()
        self._sources.clear()


def _positions(state: Any) -> Iterator[HeldPosition]:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        for item in state:
            yield from _positions(item)
    elif isinstance(state, HeldPosition):
        yield state
