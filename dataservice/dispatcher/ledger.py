"""The dispatcher's state under its lock, and the transactions by which facts come into it.

Records, applies and wakes; decides nothing, and knows neither clocks nor who was heard of when.
Invariants: the state changes only by applying the facts of one decision at a time, inside a
transaction; no answer leaves a transaction before the facts that it rests on are durable; replay
is the same `apply`. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dataservice.dispatcher import delivery
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.commit import GroupCommit, Telling
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

# Replaying so many decisions takes about a second; rewriting the state should be rare beside it.
SHORTEN_AFTER_FRAMES: Final = 20_000
_SHORTEN_FACTOR: Final = 4


class Ledger:
    """What is known for good; `journal` None keeps nothing beyond this object.

    `follow` is told, inside the lock, of every fact that was applied, but for those replayed.
    """

    def __init__(self, journal: Journal | None, follow: Callable[[ev.Event], None]) -> None:
        self.state = DispatcherState()
        self._lock = BriefLock()
        self._commits = None if journal is None else GroupCommit(journal)
        self._follow = follow
        self._waiting: dict[IterationId, threading.Condition] = {}
        self._closed = False
        self._shorten_at = SHORTEN_AFTER_FRAMES
        if journal is not None:
            self._recover(journal)

    @contextmanager
    def transaction(self) -> Iterator[Telling]:
        """Holds the lock; then waits, without it, until what was decided or told is durable."""
        telling, commits = Telling(), self._commits
        with self._lock:
            self.check_open()
            before = commits.ticket() if commits is not None else 0
            yield telling
            ticket = commits.ticket() if commits is not None else 0
        if commits is not None and (telling.has_facts or ticket != before):
            commits.wait_durable(ticket)

    def close(self) -> None:
        """Ends all waits; later transactions raise UnavailableError."""
        with self._lock:
            self._closed = True
            for condition in self._waiting.values():
                condition.notify_all()

    def retry(self) -> None:
        """Writes what the journal had no room for; UnavailableError while it has none."""
        if self._commits is not None:
            self._commits.retry()

    def shorten(self) -> None:
        """Replaces a long journal by the state that it led to.

        Others decide meanwhile: the lock is held only while the state is copied.
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
        logger.info("the journal had %d frames and has %d", before, commits.frames_kept)

    # Inside a transaction

    def check_open(self) -> None:
        """UnavailableError after `close`, or while the journal fails."""
        if self._closed:
            raise UnavailableError("the dispatcher is shutting down")
        if self._commits is not None:
            self._commits.check()

    def commit(self, decision: Decision) -> Any:
        """Records and applies a decision; its answer must not leave before it is durable."""
        if decision.events and self._commits is not None:
            self._commits.enqueue(encode_frame(decision.events))
        for event in decision.events:
            touched = delivery.touched(self.state, event, self._waiting)
            self.state.apply(event)
            self._follow(event)
            for iteration_id in touched:
                self._wake(iteration_id)
            if isinstance(event, ev.RowsConsumed | ev.WindowsFenced | ev.WindowsReleased):
                self._wake_if_finished(event.iteration_id)
        return decision.reply

    def wait_for_news(self, iteration_id: IterationId, timeout_s: float) -> None:
        """Lets others in until an iteration may have windows, or an end, that it had not."""
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
        """Consumption, which is frequent, matters to those who wait only when it is the last."""
        if self.state.iterations[iteration_id].finished and iteration_id in self._waiting:
            self._waiting.pop(iteration_id).notify_all()

    def _recover(self, journal: Journal) -> None:
        """Rebuilds the state."""
        frames = 0
        for frame in journal.replay():
            frames += 1
            for event in decode_frame(frame):
                self.state.apply(event)
        if self._commits is not None:
            self._commits.frames_kept = frames
        if frames:
            logger.info("restored the state from %d journaled decisions", frames)
