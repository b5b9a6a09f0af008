"""The state store: the dispatcher's state under its lock, and the transactions that change it.

Responsible for recording and applying decisions and for waking waiting requests; decides nothing.
Knows no clock and no liveness of clients. Invariants: the state changes only inside a transaction,
by applying the facts of one decision at a time; no answer leaves a transaction before the facts
that it depends on are durable; replay uses the same `apply`. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import leasing
from dataservice.dispatcher.commit import GroupCommit
from dataservice.dispatcher.compaction import facts_of
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.requests import Decision
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import UnavailableError
from dataservice.runtime.brief_lock import BriefLock
from dataservice.vocabulary import IterationId

if TYPE_CHECKING:
    from dataservice.runtime.journal import Journal

logger = logging.getLogger(__name__)

# Replaying so many decisions takes about a second. The factor keeps rewriting the state rare.
SHORTEN_AFTER_FRAMES: Final = 20_000
_SHORTEN_FACTOR: Final = 4


@dataclass(slots=True)
class Transaction:
    """A transaction; its answer need not wait if it has no facts and nothing was decided."""

    answer_has_facts: bool = True


class StateStore:
    """The state and its journal; with `journal` None the state does not outlive this object.

    `on_applied` is called inside the lock with every fact after it was applied, except in replays.
    """

    def __init__(self, journal: Journal | None, on_applied: Callable[[ev.Event], None]) -> None:
        self.state = DispatcherState()
        self._lock = BriefLock()
        self._commits = None if journal is None else GroupCommit(journal)
        self._on_applied = on_applied
        self._waiting: dict[IterationId, threading.Condition] = {}
        self._closed = False
        self._shorten_at = SHORTEN_AFTER_FRAMES
        if journal is not None:
            self._recover(journal)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Holds the lock; then waits, without it, until all facts decided or told are durable.

        UnavailableError after `close`, or while the journal fails.
        """
        transaction, commits = Transaction(), self._commits
        with self._lock:
            self.check_open()
            before = commits.ticket() if commits is not None else 0
            yield transaction
            ticket = commits.ticket() if commits is not None else 0
        if commits is not None and (transaction.answer_has_facts or ticket != before):
            commits.wait_durable(ticket)

    def close(self) -> None:
        """Wakes all waiting requests; these and later transactions raise UnavailableError."""
        with self._lock:
            self._closed = True
            for condition in self._waiting.values():
                condition.notify_all()

    def retry(self) -> None:
        """Retries the write for which the disk had no room; UnavailableError while it has none."""
        if self._commits is not None:
            self._commits.retry()

    def shorten(self) -> None:
        """Replaces a journal that has grown long by facts that describe the present state.

        Holds the lock only while it copies the state, so that other requests go on.
        """
        commits = self._commits
        if commits is None or commits.frames_kept < self._shorten_at:
            return
        before = commits.frames_kept
        with self._lock:
            self.check_open()
            facts = list(facts_of(self.state))
            commits.begin_replacing()
        commits.replace([encode_frame([fact]) for fact in facts])
        self._shorten_at = max(SHORTEN_AFTER_FRAMES, _SHORTEN_FACTOR * commits.frames_kept)
        logger.info("compacted the journal from %d frames to %d", before, commits.frames_kept)

    # Inside a transaction

    def check_open(self) -> None:
        """Raises UnavailableError after `close`, or while the journal fails."""
        if self._closed:
            raise UnavailableError("the dispatcher is shutting down")
        if self._commits is not None:
            self._commits.check()

    def commit(self, decision: Decision) -> Any:
        """Records and applies a decision and returns its reply.

        The reply must not leave before the decision is durable, that is, before the transaction
        ends.
        """
        if decision.events and self._commits is not None:
            self._commits.enqueue(encode_frame(decision.events))
        for event in decision.events:
            touched = leasing.touched(self.state, event, self._waiting)
            self.state.apply(event)
            self._on_applied(event)
            for iteration_id in touched:
                self._wake(iteration_id)
            if isinstance(event, ev.RowsConsumed | ev.WindowsFenced | ev.WindowsReleased):
                self._wake_if_finished(event.iteration_id)
        return decision.reply

    def wait_for_change(self, iteration_id: IterationId, timeout_s: float) -> None:
        """Releases the lock until a fact may have brought windows, or the end, to an iteration.

        Waits at most `timeout_s`; UnavailableError after `close`, or while the journal fails.
        """
        self._condition(iteration_id).wait(timeout_s)
        self.check_open()

    def _condition(self, iteration_id: IterationId) -> threading.Condition:
        if iteration_id not in self._waiting:
            self._waiting[iteration_id] = threading.Condition(self._lock)  # type: ignore[arg-type]
        return self._waiting[iteration_id]

    def _wake(self, iteration_id: IterationId) -> None:
        condition = self._waiting.get(iteration_id)
        if condition is not None:
            condition.notify_all()
            if iteration_id not in self.state.iterations:
                del self._waiting[iteration_id]

    def _wake_if_finished(self, iteration_id: IterationId) -> None:
        """Wakes the waiting requests of an iteration only if it is finished.

        Used for frequent facts, such as consumption, which matter to them only then.
        """
        if self.state.iterations[iteration_id].finished and iteration_id in self._waiting:
            self._waiting.pop(iteration_id).notify_all()

    def _recover(self, journal: Journal) -> None:
        """Rebuilds the state from the journal."""
        frames = 0
        for frame in journal.replay():
            frames += 1
            for event in decode_frame(frame):
                self.state.apply(event)
        if self._commits is not None:
            self._commits.frames_kept = frames
        if frames:
            logger.info("restored the state from %d journaled decisions", frames)
