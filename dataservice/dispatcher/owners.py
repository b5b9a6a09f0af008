"""Readers of an owner: their windows wait, for a while, for its word when one is lost.

A program that trains knows what became of the rows of a reader that was lost with its process; so
such a reader's windows wait, for a bounded time, until it speaks. Decisions are pure functions;
the desk is a part of the service, over its ledger. Invariant: the windows of a lost reader that has
an owner go to others after its owner's word, or after the bound, with a warning; after its word
the owner has no readers, not even one that was on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from dataservice.dispatcher import decide
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.delivery import consumed_facts
from dataservice.dispatcher.ledger import Ledger
from dataservice.dispatcher.liveness import Deadlines
from dataservice.dispatcher.plans import RowMark
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.state import DispatcherState
from dataservice.vocabulary import ReaderId

logger = logging.getLogger(__name__)

_GONE = "the owner of this reader said that its process was lost"

Consumed = Mapping[ReaderId, tuple[RowMark, ...]]


def owner_of(state: DispatcherState, reader_id: ReaderId) -> str:
    """The owner of a reader; "" where it has none, or is not there."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    return "" if iteration_id is None else state.iterations[iteration_id].readers[reader_id].owner


def readers_of(state: DispatcherState, owner: str) -> tuple[ReaderId, ...]:
    """All readers of an owner that are there."""
    return tuple(
        reader.reader_id
        for iteration in state.iterations.values()
        for reader in iteration.readers.values()
        if owner and reader.owner == owner
    )


def release(state: DispatcherState, owner: str, consumed: Consumed) -> Decision:
    """An owner's word: all its readers are gone, these rows were used up. Answers how many.

    It is final: a process that was taken for lost may still run, and open a reader later, whose
    rows nobody would ever speak of.
    """
    facts: list[ev.Event] = []
    if owner and owner not in state.released_owners:
        facts.append(ev.OwnerReleased(owner=owner))
    released = readers_of(state, owner)
    for reader_id in released:
        iteration = state.iterations[state.iteration_of_reader[reader_id]]
        facts += consumed_facts(iteration, reader_id, consumed.get(reader_id, ()))
        facts.append(ev.ReaderLost(reader_id=reader_id, reason=_GONE))
    return Decision(tuple(facts), len(released))


class OwnerDesk:
    """`release` is a transaction of the ledger; everything else runs inside one."""

    def __init__(self, ledger: Ledger, timeout_s: float) -> None:
        self._state = ledger.state
        self._transaction, self._commit = ledger.transaction, ledger.commit
        self._timeout_s = timeout_s
        self._awaited = Deadlines[ReaderId]()

    def release(self, owner: str, consumed: Consumed) -> int:
        """Records an owner's word, and says how many readers went."""
        with self._transaction():
            return int(self._commit(release(self._state, owner, consumed)))

    def lose(self, silent: Iterable[ReaderId], now_s: float) -> list[ReaderId]:
        """Inside the lock: those of the silent readers, and of earlier ones, that are lost now."""
        lost = []
        for reader_id in silent:
            if owner_of(self._state, reader_id):
                self._awaited.renew(reader_id, now_s + self._timeout_s)
            else:
                lost.append(reader_id)
        for reader_id in self._awaited.expired(now_s):
            owner = owner_of(self._state, reader_id)
            if owner:
                logger.warning(
                    "reader %s was lost, and its owner %s did not say within %.0f s what became of "
                    "its rows: those it had not acknowledged go to other readers",
                    reader_id, owner, self._timeout_s,
                )  # fmt: skip
                lost.append(reader_id)
        for reader_id in lost:
            self._commit(decide.lose_reader(self._state, reader_id))
        return lost

    def hear_of(self, reader_id: ReaderId) -> None:
        """Inside the lock: a reader that was taken for lost is there."""
        self._awaited.drop(reader_id)

    def renew_all(self, now_s: float) -> None:
        """Inside the lock: after a standstill, in which nobody could speak."""
        self._awaited.renew_all(now_s + self._timeout_s)
