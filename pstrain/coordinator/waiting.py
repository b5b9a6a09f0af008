"""How long the scheduler waits: for a condition, for any trainer, for the one of bound closures.

Knows nothing of what closures do. Invariant: no wait is for ever where nobody is there to end it.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pstrain.coordinator import decide
from pstrain.coordinator.orders import Closure
from pstrain.coordinator.outboxes import Outboxes
from pstrain.coordinator.state import CoordinatorState
from pstrain.errors import DeadlineExceededError, UnavailableError

logger = logging.getLogger(__name__)

_WARN_AFTER_S: Final = 10.0


class Waiting(ABC):
    """What of the scheduler is about time. Thread-safe."""

    _state: CoordinatorState
    _closures: OrderedDict[int, Closure]
    _fatal: Exception | None
    _capacity: int

    def __init__(self, trainer_timeout_s: float) -> None:
        self.changed = threading.Condition()
        self._outboxes = Outboxes()
        self._trainer_timeout_s = trainer_timeout_s
        self._alone_since_s = time.monotonic()
        self._away_since_s: dict[int, float] = {}  # of trainers that closures are bound to

    @abstractmethod
    def _apply(self, decision: decide.Decision) -> None: ...

    @abstractmethod
    def _begin_without_absent(self) -> None: ...

    @abstractmethod
    def stop(self, error: Exception | None = None) -> None:
        """Ends what has not ended, for good; ``error`` is raised by whoever waits or asks."""

    def _has_room(self, trainer: int | None) -> bool:
        """Those that wait for one trainer, which may be away, take no room of others."""
        if trainer is not None:
            return self._state.waiting_for(trainer) < self._capacity
        return len(self._closures) - len(self._state.bound) < self._capacity

    def give_up_if_alone(self) -> None:
        """Stops with UnavailableError when closures have waited too long without any trainer.

        Where some trainers are there, rounds begin after a while without the others, and closures
        fail that are bound to one which stays away.
        """
        with self.changed:
            self._begin_without_absent()
            alone_s = time.monotonic() - self._alone_since_s
            if self._state.is_idle or self._fatal is not None:
                self._away_since_s.clear()
                return
            if self._outboxes:
                self._give_up_on_those_away()
            elif alone_s > self._trainer_timeout_s:
                self.stop(
                    UnavailableError(
                        f"no trainer could be reached for {alone_s:.0f} s while "
                        f"{len(self._closures)} closures wait; start the cluster's 'worker' tasks"
                    )
                )

    def _give_up_on_those_away(self) -> None:
        now_s = time.monotonic()
        away = set(self._state.bound_waiting) - self._outboxes.trainers
        self._away_since_s = {t: self._away_since_s.get(t, now_s) for t in away}
        for trainer, since_s in self._away_since_s.items():
            line = self._state.bound_waiting.get(trainer)
            if line and now_s - since_s > self._trainer_timeout_s:
                self._closures[line.first].error = UnavailableError(
                    f"trainer {trainer} could not be reached for {now_s - since_s:.0f} s while "
                    f"{len(line)} closures wait for just this one; start the cluster's 'worker' "
                    f"task {trainer}, or schedule them without trainer="
                )
                self._apply(decide.give_up_on(self._state, trainer))

    def _named(self, closure: int) -> str:
        known = self._closures.get(closure)
        number = f"closure {closure}"
        return f"{known.name} ({number})" if known is not None and known.name else number

    def describe(self, closure: int) -> str:
        """A closure's function and number, and where it is."""
        with self.changed:
            return f"{self._named(closure)}, which {self._where(closure)}"

    def _where(self, closure: int) -> str:
        state = self._state
        run = state.running.get(closure)
        if run is not None:
            return f"trainer {run.trainer} has taken on (attempt {run.attempt + 1})"
        if closure in state.round.prepared or closure in state.round.decided:
            return "has run and waits for its round"
        if closure in state.inputs:
            missing = ", ".join(map(self._named, state.inputs.of(closure)))
            return f"waits for the value of {missing}"
        if closure in state.bound:
            return f"waits for trainer {state.bound[closure]}"
        if closure not in state.attempts:
            return "has ended by now"
        return f"waits in the queue, with {state.waiting_count - 1} others"

    def _wait(
        self,
        condition: Callable[[], bool],
        deadline_s: float | None,
        what: str,
        pause_at_s: float | None = None,
    ) -> bool:
        """Waits with the lock; warns of long waits; gives up where no trainer is to be had.

        False at ``pause_at_s``, if the condition does not hold by then.
        """
        warn_at_s = time.monotonic() + _WARN_AFTER_S
        while not condition():
            now_s = time.monotonic()
            if self._fatal is not None:
                raise self._fatal
            if deadline_s is not None and now_s >= deadline_s:
                raise DeadlineExceededError(
                    f"gave up waiting for {what}: {self._state.waiting_count} closures wait, "
                    f"{len(self._state.running)} run, {len(self._state.trainers)} trainers live"
                )
            self.give_up_if_alone()
            if now_s >= warn_at_s and (missing := self._missing()):
                logger.warning("waiting for %s to connect", missing)
                warn_at_s = now_s + _WARN_AFTER_S
            if pause_at_s is not None and now_s >= pause_at_s:
                return False
            ends_s = [each for each in (deadline_s, pause_at_s) if each is not None]
            self.changed.wait(min(1.0, *(end_s - now_s for end_s in ends_s)) if ends_s else 1.0)
        return True

    def _missing(self) -> str:
        """Who would have to come for closures to go on; empty if nobody."""
        if not self._outboxes:
            return "a trainer"
        away = sorted(set(self._state.bound_waiting) - self._outboxes.trainers)
        return f"trainers {away}, which closures are bound to," if away else ""
