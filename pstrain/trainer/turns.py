"""The commit order of a trainer's closures: the order in which they took their elements.

Pure: no threads, no network. A ticket stands for an element that was taken from a source. Committed
elements are always a prefix of those taken, so a few marks describe them. Closures whose elements
interleave commit together. Ready closures that have the next elements join them, as their own
commit could not begin before this one has ended. A closure without elements waits for no other.
Invariant: when a group may commit, every element that was taken before one of its own is committed
or belongs to the group.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar


class Phase(Enum):
    """The state of a ticket."""

    TAKEN = "taken"
    SENT = "sent"  # its closure's end is sent; it is decided once the coordinator receives it
    DONE = "done"


class Receipt(Protocol):
    """Acknowledges that the rows of an element, and of all before it, are used up."""

    def acknowledge(self) -> None: ...
    def marks(self) -> list[dict[str, Any]]: ...


class Run(Protocol):
    """What this module needs of a run: the tickets of the part that it wants to commit next."""

    tickets: list[Ticket]

    @property
    def has_changes(self) -> bool: ...


RunT = TypeVar("RunT", bound=Run)


@dataclass(slots=True, eq=False)
class Ticket:
    """A taken element; numbers increase in the order in which elements were taken."""

    source: int
    number: int
    receipt: Receipt
    run: Run
    phase: Phase = Phase.TAKEN


class Turns:
    """The tickets of all sources. Not thread-safe. Keeps nothing for a source without tickets.

    A long-lived trainer has many sources, because each epoch's iterator is one.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, deque[Ticket]] = {}

    def take(self, source: int, receipt: Receipt, run: Run) -> Ticket:
        """Returns a ticket for the next element of a source."""
        ticket = Ticket(source, next(self._numbers), receipt, run)
        self._waiting.setdefault(source, deque()).append(ticket)
        return ticket

    def group(
        self, run: RunT, ready: Collection[RunT], followers: Collection[RunT] = ()
    ) -> list[RunT] | None:
        """Returns the runs that may commit together with ``run``; None while it has to wait.

        ``ready``: the runs that want to commit too. ``followers``: those of them that may also come
        after ``run``, if nothing else comes between. The result is in the order of first tickets.
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
        self._add_followers(members, followers)
        if len(members) > 1:
            members.sort(key=_first_number)
        return members

    def _add_followers(self, members: list[RunT], followers: Collection[RunT]) -> None:
        """Adds the runs whose turn comes with the commit of ``members``."""
        for run in sorted(followers, key=_first_number):
            if run.tickets and run not in members:
                joined = [*members, run]
                changes = any(member.has_changes for member in joined)
                if not any(_blocks(t, changes=changes) for t in self._before(joined)):
                    members.append(run)

    def _before(self, members: Sequence[Run]) -> Iterable[Ticket]:
        """Yields tickets of other runs that come before a ticket of ``members`` on its source."""
        # A set: a closure may take thousands of elements.
        mine = {ticket for member in members for ticket in member.tickets}
        last: dict[int, int] = {}
        for ticket in mine:
            last[ticket.source] = max(ticket.number, last.get(ticket.source, -1))
        for source, number in last.items():
            for ticket in self._waiting.get(source, ()):
                if ticket.number < number and ticket not in mine:
                    yield ticket

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Removes tickets of elements that are given back, the last taken of their sources."""
        for ticket in tickets:
            self._waiting[ticket.source].remove(ticket)
        self._forget_empty()

    def finish(self, tickets: Iterable[Ticket]) -> list[Receipt]:
        """Marks elements as used up; returns the receipts that may be acknowledged by that."""
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


def _first_number(run: Run) -> int:
    return min((ticket.number for ticket in run.tickets), default=0)


def _blocks(ticket: Ticket, *, changes: bool) -> bool:
    """True if a group, with changes or without, has to wait for another's earlier ticket."""
    return ticket.phase is Phase.TAKEN or (ticket.phase is Phase.SENT and changes)


def last_receipts(tickets: Iterable[Ticket]) -> list[Receipt]:
    """Returns, for each source, the receipt of the last of its tickets."""
    last: dict[int, Ticket] = {}
    for ticket in tickets:
        known = last.get(ticket.source)
        if known is None or ticket.number > known.number:
            last[ticket.source] = ticket
    return [ticket.receipt for ticket in last.values()]
