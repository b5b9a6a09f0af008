"""The scheduler's part in checkpoints: when nothing runs, and what has ended since the last.

Knows neither files nor servers. Invariant: while somebody holds, no closure starts but those that a
round which has begun needs; what is kept is run again at most once for each restore.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pstrain.coordinator import decide, rounds
from pstrain.coordinator.orders import AskPosition, Closure
from pstrain.coordinator.waiting import Waiting
from pstrain.errors import UnavailableError

logger = logging.getLogger(__name__)

_KEPT_MAX: Final = 1 << 20


class Holding(Waiting):
    """What of the scheduler is not about single closures. Thread-safe."""

    _errors: list[Exception]
    _given_up: Exception | None
    _joining_since_s: float

    def __init__(self, trainer_timeout_s: float) -> None:
        super().__init__(trainer_timeout_s)
        self._positions: dict[int, Any] = {}
        self._kept: dict[int, Closure] | None = None
        self._holders: set[object] = set()
        self._redone: set[int] = set()

    @abstractmethod
    def _go_on(self) -> None: ...

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Scope in which no closure runs; entered when those that do have ended.

        DeadlineExceededError after ``timeout_s``, with scheduling going on. A thread may be in it
        more than once.
        """
        is_outermost = not self.is_held_here()
        with self.changed:
            self._apply(decide.hold(self._state))
        try:
            with self.changed:
                deadline_s = time.monotonic() + timeout_s
                # What a round still waits for may not be scheduled before this is over.
                self._go_on()
                self._wait(lambda: self._state.is_settled, deadline_s, "closures to end, to save")
            self._holders.add(threading.current_thread())
            yield
        finally:
            if is_outermost:
                self._holders.discard(threading.current_thread())
            with self.changed:
                self._apply(decide.let_go(self._state))
                self._go_on()
                self.changed.notify_all()

    def is_held_here(self) -> bool:
        """Whether this thread is in such a scope, which a restore may have to wait for."""
        return threading.current_thread() in self._holders

    def hold(self) -> None:
        """Nothing starts until :meth:`let_go`; trainers are about to be taken off."""
        with self.changed:
            self._apply(decide.hold(self._state))
            self._apply(decide.await_trainers(self._state))
            self.changed.notify_all()

    def let_go(self) -> None:
        with self.changed:
            self._joining_since_s = time.monotonic()
            self._apply(decide.let_go(self._state))
            self._go_on()

    def wait_alone(self, timeout_s: float) -> None:
        """Blocks until no trainer is connected and what they left is settled."""
        with self.changed:
            deadline_s = time.monotonic() + timeout_s
            self._alone_since_s = time.monotonic()
            self._wait(lambda: not self._state.trainers, deadline_s, "trainers to let go")

    def undo_round(self) -> None:
        """What was being applied is not made; its closures wait again."""
        with self.changed:
            self._apply(decide.Decision(rounds.undo_round(self._state)))
            self.changed.notify_all()

    def keep_ended(self) -> None:
        """Closures that end are kept from now on, for :meth:`redo`."""
        with self.changed:
            self._kept = {}

    def keep_none(self) -> None:
        """Inverse of :meth:`keep_ended`."""
        with self.changed:
            self._kept = None

    def mark(self) -> int:
        """Stands for all closures that have ended so far."""
        with self.changed:
            return self._state.finished_count

    def forget(self, mark: int) -> None:
        """What ended before the mark will not be run again."""
        with self.changed:
            if self._kept is not None:
                self._kept = {number: c for number, c in self._kept.items() if number > mark}

    def parts(self) -> dict[int, int]:
        """How many of their parts closures have made that wait to run again."""
        with self.changed:
            return dict(self._state.parts)

    def redo(self, parts: Mapping[int, int]) -> int:
        """Queues all that ended since the mark; how many. UnavailableError if they are too many.

        ``parts``: of closures, that were made by then.
        """
        with self.changed:
            kept, self._kept = self._kept or {}, {}
            if len(kept) >= _KEPT_MAX:
                raise UnavailableError(
                    f"more than {_KEPT_MAX:,} closures have ended since the last checkpoint, so "
                    "they cannot be run again: start anew from it, and save more often"
                )
            again = {closure.id: closure for closure in kept.values()}
            self._closures = OrderedDict(sorted({**again, **self._closures}.items()))
            self._redone |= again.keys()
            bound = {c.id: c.trainer for c in again.values() if c.trainer is not None}
            were_in = {c.id: c.round for c in again.values()}
            priorities = {c.id: c.priority for c in again.values() if c.priority}
            self._apply(decide.reopen(self._state, were_in, bound, parts, priorities))
            return len(again)

    def wait_redone(self, timeout_s: float) -> None:
        """Blocks until all that :meth:`redo` queued have ended again."""
        with self.changed:
            if self._has_redone():
                return
            deadline_s = time.monotonic() + timeout_s
            self._wait(self._has_redone, deadline_s, "closures to run again after a restore")

    def _has_redone(self) -> bool:
        self._redone &= self._closures.keys()
        return not self._redone

    def give_up(self, error: Exception) -> int:
        """Ends all that has not ended with ``error``; how many.

        Whoever schedules or waits next is shown it, and nothing starts before.
        """
        with self.changed:
            count = len(self._closures)
            self._given_up = error
            self._apply(decide.give_up(self._state))
            self._errors = [error]
            self.changed.notify_all()
            return count

    def forget_given_up(self) -> None:
        """The program knows, and scheduling goes on."""
        with self.changed:
            if self._given_up is not None:
                self._given_up, self._errors = None, []
                self._apply(decide.report_errors(self._state))
                self._go_on()

    def positions(self, resource_id: str, timeout_s: float) -> dict[int, Any]:
        """What each trainer that is there says of its iterator; only while nothing runs."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            while True:
                self._wait(
                    lambda: self._state.is_settled, deadline_s, "lost trainers to be settled"
                )
                losses = self._state.lost_count
                self._positions = {}
                self._outboxes.put_all(AskPosition(resource_id))
                self._wait(
                    lambda: (
                        not self._state.is_settled
                        or self._positions.keys() >= self._outboxes.trainers
                    ),
                    deadline_s,
                    "trainers to say how far their data is",
                )
                # What a lost trainer had used up, the others' readers know when it is settled.
                if losses == self._state.lost_count and self._state.is_settled:
                    return dict(self._positions)

    def position(self, trainer: int, position: Any) -> None:
        """An answer to :meth:`positions`; an Exception where there is none."""
        with self.changed:
            self._positions[trainer] = position
            self.changed.notify_all()

    def _keep_ended(self, closure: Closure) -> None:
        if self._kept is not None and len(self._kept) < _KEPT_MAX:
            self._kept[self._state.finished_count] = closure

    @staticmethod
    def _error_that_counts(closure: Closure, error: Exception | None) -> Exception | None:
        """A closure that has ended well and runs again has had its say."""
        if error is not None and closure.value.has_value:
            logger.warning("closure %d had ended well and failed again: %s", closure.id, error)
            return None
        return error
