"""Receipts for rows that count as consumed when they have been used, not when they are handed out.

A receipt stands for all rows of the elements so far. The consumer of an element acknowledges its
receipt when the effect of the element cannot be undone any more. Knows streams and positions,
nothing of what the consumer does. Invariant: rows are acknowledged to a source in the order in
which it handed them out, each once; a source that was read to its end stays open until its rows
are acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class HeldSource(ABC):
    """A stream whose rows wait for receipts."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """True if the pipeline has read the stream to its end."""

    @abstractmethod
    def state(self) -> Any:
        """Returns the live position after all rows handed out so far."""

    @abstractmethod
    def is_settled(self) -> bool:
        """True if all rows handed out were acknowledged."""

    @abstractmethod
    def abandon(self) -> None:
        """Closes the stream at once, whatever was acknowledged."""


class HeldPosition(ABC):
    """A position in a held source."""

    @property
    @abstractmethod
    def source(self) -> HeldSource:
        """The source that this is a position of."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Acknowledges all rows before this position as consumed."""

    @abstractmethod
    def marks(self) -> dict[str, Any] | None:
        """Returns what `release_readers` is told of the rows before it, JSON-able, or None."""


class Receipt:
    """A receipt for the rows of all elements up to some element.

    It may be acknowledged after the receipt of a later element.
    """

    def __init__(self, positions: list[HeldPosition]) -> None:
        self._positions = positions

    @property
    def is_empty(self) -> bool:
        """True if no row of a data service is among the rows."""
        return not self._positions

    def acknowledge(self) -> None:
        """Acknowledges the rows as consumed: no reader will get them again."""
        for position in self._positions:
            position.acknowledge()

    def marks(self) -> list[dict[str, Any]]:
        """Returns what to tell `dataservice.release_readers` if this process is lost; JSON-able."""
        marks = (position.marks() for position in self._positions)
        return [mark for mark in marks if mark is not None]


class ReceiptSources:
    """The sources of one pipeline whose rows wait for receipts.

    `owner` is the name under which `release_readers` reports on this process if it is lost.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._sources: list[HeldSource] = []

    def add(self, source: HeldSource) -> None:
        """Adds a source of the pipeline."""
        self._sources.append(source)

    def receipt(self, state: Any) -> Receipt:
        """Returns a receipt for all rows before a state of the pipeline.

        A source that has ended and that the state does not name was read to its end before it. An
        ended source that the state names is kept: it may go on with rows that a lost reader left.
        """
        found = list(_positions(state))
        named = [position.source for position in found]
        over = [s for s in self._sources if s.has_ended and s not in named]
        settled = [source for source in over if source.is_settled()]
        self._sources = [s for s in self._sources if s not in settled]
        return Receipt([*found, *(s.state() for s in over if s not in settled)])

    @property
    def services(self) -> list[str]:
        """The targets of the services that the sources read."""
        return sorted({getattr(source, "target", "") for source in self._sources} - {""})

    def abandon(self) -> None:
        """Closes the sources; rows that were not acknowledged go to other readers."""
        for source in self._sources:
            source.abandon()
        self._sources.clear()


def _positions(state: Any) -> Iterator[HeldPosition]:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        for item in state:
            yield from _positions(item)
    elif isinstance(state, HeldPosition):
        yield state
