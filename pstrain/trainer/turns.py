"""The commit order of a trainer's closures: that in which they took their elements.

Pure: no threads, no network. A ticket stands for an element that was taken from a source. What is
committed is then always a prefix of what was taken, so a few marks tell it. Closures whose
elements lie between each other's commit together; what took nothing waits for nobody. Invariant:
when a group may commit, every element that was taken before one of its own is committed or its own.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar


class Phase(Enum):
    """Where a ticket is."""

    TAKEN = "taken"
    SENT = "sent"  # its closure's end is on its way to the coordinator, which decides by hearing
    DONE = "done"


class Receipt(Protocol):
    """Says that the rows of an element, and of all before it, are used up."""

    def acknowledge(self) -> None: ...
    def marks(self) -> list[dict[str, Any]]: ...


class Run(Protocol):
    """A run of a closure, and the tickets of the part that it wants to commit next."""

    tickets: list[Ticket]

    @property
    def has_changes(self) -> bool: ...


RunT = TypeVar("RunT", bound=Run)


@dataclass(slots=True, eq=False)
class Ticket:
    """An element; numbers count up in the order in which elements were taken."""

    source: int
    number: int
    receipt: Receipt
    run: Run
    phase: Phase = Phase.TAKEN


class Turns:
    """Tickets of all sources. Not thread-safe. Holds nothing of sources without a ticket.

    A trainer that lives for long sees one source after the other: each epoch is one.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, deque[Ticket]] = {}

    def take(self, source: int, receipt: Receipt, run: Run) -> Ticket:
        """A ticket for the next element of a source."""
        ticket = Ticket(source, next(self._numbers), receipt, run)
        self._waiting.setdefault(source, deque()).append(ticket)
        return ticket

    def group(self, run: RunT, ready: Collection[RunT]) -> list[RunT] | None:
        """Those that may commit now, together with ``run``; None while it has to wait.

        ``ready`` want to commit too. In the order of their first tickets.
        """
        members = [run]
        while blocking := list(self._before(members)):
            changes = any(member.has_changes for member in members)
            if any(t.phase is Phase.SENT and changes for t in blocking):
                return None
            others = [t for t in blocking if t.phase is Phase.TAKEN]
            if not others:
                break
            for ticket in others:
                other = next((each for each in ready if each is ticket.run), None)
                if other is None or ticket not in other.tickets:
                    return None
                if other not in members:
                    members.append(other)
        if len(members) > 1:
            members.sort(key=lambda member: min((t.number for t in member.tickets), default=0))
        return members

    def _before(self, members: Sequence[Run]) -> Iterable[Ticket]:
        """Tickets of others, on the same sources, that come before one of the members'."""
        mine = [ticket for member in members for ticket in member.tickets]
        last: dict[int, int] = {}
        for ticket in mine:
            last[ticket.source] = max(ticket.number, last.get(ticket.source, -1))
        for source, number in last.items():
            for ticket in self._waiting.get(source, ()):
                if ticket.number < number and ticket not in mine:
                    yield ticket

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Their elements, the last that were taken of their sources, are given back."""
        for ticket in tickets:
            self._waiting[ticket.source].remove(ticket)
        self._forget_empty()

    def finish(self, tickets: Iterable[Ticket]) -> list[Receipt]:
        """Their elements are used up; what may be acknowledged by that."""
        for ticket in tickets:
            ticket.phase = Phase.DONE
        receipts = []
        for waiting in self._waiting.values():
            last = None
            while waiting and waiting[0].phase is Phase.DONE:
                last = waiting.popleft()
            if last is not None:
                receipts.append(last.receipt)
        self._forget_empty()
        return receipts

    def _forget_empty(self) -> None:
        for source in [source for source, waiting in self._waiting.items() if not waiting]:
            del self._waiting[source]


def last_receipts(tickets: Iterable[Ticket]) -> list[Receipt]:
    """The receipt of the last of the tickets of each source."""
    last: dict[int, Ticket] = {}
    for ticket in tickets:
        known = last.get(ticket.source)
        if known is None or ticket.number > known.number:
            last[ticket.source] = ticket
    return [ticket.receipt for ticket in last.values()]
