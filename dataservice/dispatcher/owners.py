"""Readers with an owner, which states what became of the rows of a lost reader.

A training program knows which rows of a lost reader were used, so the windows of such a reader wait
for that statement, for a bounded time. Decisions are pure functions; `OwnerWaits` is a part of the
service that works on its state store. Invariant: the windows of a lost reader that has an owner go
to other readers after the owner's statement, once training goes back to a saved position, or, with
a warning, after the bound. After its statement an owner has no readers, and a request to open one
that is still in flight is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from dataservice.dispatcher import decide
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.leasing import consumed_facts
from dataservice.dispatcher.liveness import Deadlines
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.state_store import StateStore
from dataservice.ranges import RowMark
from dataservice.vocabulary import JobId, ReaderId

logger = logging.getLogger(__name__)

_GONE = "the owner of this reader reported that its process has ended or was lost"

Marks = Mapping[ReaderId, tuple[RowMark, ...]]


def owner_of(state: DispatcherState, reader_id: ReaderId) -> str:
    """Returns the owner of a reader; "" if the reader has none, or is not there."""
    iteration_id = state.iteration_of_reader.get(reader_id)
    return "" if iteration_id is None else state.iterations[iteration_id].readers[reader_id].owner


def readers_of(state: DispatcherState, owner: str) -> tuple[ReaderId, ...]:
    """Returns the readers of an owner that are there."""
    return tuple(
        reader.reader_id
        for iteration in state.iterations.values()
        for reader in iteration.readers.values()
        if owner and reader.owner == owner
    )


def release(state: DispatcherState, owner: str, consumed: Marks) -> Decision:
    """Releases an owner: all its readers are lost, after these rows. Answers how many there were.

    The release is final: a process that was taken for lost may still run and open another reader,
    but nobody would ever state what became of the rows of that reader.
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


class OwnerWaits:
    """Tracks how long the windows of lost readers wait for their owners.

    `release` is a transaction of the state store; all other methods run inside one.
    """

    def __init__(self, store: StateStore, timeout_s: float) -> None:
        self._state = store.state
        self._transaction, self._commit = store.transaction, store.commit
        self._timeout_s = timeout_s
        self._awaited = Deadlines[ReaderId]()

    def release(self, owner: str, consumed: Marks) -> int:
        """Records an owner's statement and returns how many readers it released."""
        with self._transaction():
            return int(self._commit(release(self._state, owner, consumed)))

    def lose(self, silent: Iterable[ReaderId], now_s: float) -> list[ReaderId]:
        """Removes the silent readers that have no owner, and those whose owner's time is up.

        Runs inside the lock. Returns the removed readers; the other silent ones begin to wait.
        """
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
                    "reader %s was lost, and its owner %s did not report within %.0f s which of "
                    "its rows were used: rows that it had not acknowledged go to other readers",
                    reader_id, owner, self._timeout_s,
                )  # fmt: skip
                lost.append(reader_id)
        for reader_id in lost:
            self._commit(decide.lose_reader(self._state, reader_id))
        return lost

    def give_way(self, job_id: JobId) -> None:
        """Gives up the readers of a job if all are lost and wait for their owners.

        For training that goes back to a saved position, whatever became of their rows. Runs inside
        the lock.
        """
        iterations = self._state.jobs[job_id].iterations.values()
        readers = [reader for each in iterations for reader in self._state.iterations[each].readers]
        if all(reader_id in self._awaited for reader_id in readers):
            for reader_id in readers:
                self._commit(decide.lose_reader(self._state, reader_id))

    def stop_waiting_for(self, reader_id: ReaderId) -> None:
        """Stops the wait for the owner of a reader that is heard of again. Runs inside the lock."""
        self._awaited.drop(reader_id)

    def renew_all(self, now_s: float) -> None:
        """Restarts all waits after a standstill of the dispatcher. Runs inside the lock."""
        self._awaited.renew_all(now_s + self._timeout_s)
