"""Waits of the scheduler, and their time-outs: for a condition, for trainers that are away.

Knows nothing of what closures do. Invariant: a wait that no trainer is there to end is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from pstrain.coordinator import decide, rounds
from pstrain.coordinator.core import Core
from pstrain.coordinator.whereabouts import first_unfinished
from pstrain.errors import DeadlineExceededError, UnavailableError

logger = logging.getLogger(__name__)

ABSENT_TIMEOUT_S: Final = 60.0
"""How long the first round waits for trainers that have never joined."""

_WARN_AFTER_S: Final = 10.0


class Waits:
    """The waits of one scheduler. Callers hold its lock, except for `check_absent_trainers`."""

    def __init__(self, core: Core, trainer_timeout_s: float) -> None:
        self._core = core
        self._trainer_timeout_s = trainer_timeout_s
        self._joining_since_s = time.monotonic()
        self._no_trainers_since_s = time.monotonic()
        self._away_since_s: dict[int, float] = {}  # by trainer that closures are bound to
        self._warn_at_s: float | None = None  # None while no trainer is missing

    def note_joining(self) -> None:
        """Notes that trainers are expected to join, or to come back, from now on."""
        self._joining_since_s = time.monotonic()

    def note_no_trainers(self) -> None:
        """Notes that from now on closures may wait while no trainer is connected."""
        self._no_trainers_since_s = time.monotonic()

    def until(
        self,
        condition: Callable[[], bool],
        deadline_s: float | None,
        what: str,
        pause_at_s: float | None = None,
    ) -> bool:
        """Waits for ``condition``, releasing the lock meanwhile; False if not by ``pause_at_s``.

        Raises DeadlineExceededError at ``deadline_s``, and the scheduler's fatal error, as when no
        trainer comes.
        """
        core = self._core
        while not condition():
            now_s = time.monotonic()
            if core.fatal is not None:
                raise core.fatal.with_traceback(None)
            if deadline_s is not None and now_s >= deadline_s:
                state = core.state
                raise DeadlineExceededError(
                    f"gave up waiting for {what}: {len(state.queues)} closures wait, "
                    f"{len(state.running)} run, {len(state.trainers)} trainers are "
                    f"alive{first_unfinished(state, core.label_of)}"
                )
            self.check_absent_trainers()
            if pause_at_s is not None and now_s >= pause_at_s:
                return False
            ends_s = [each for each in (deadline_s, pause_at_s) if each is not None]
            core.changed.wait(min(1.0, *(end_s - now_s for end_s in ends_s)) if ends_s else 1.0)
        return True

    def check_absent_trainers(self) -> None:
        """Stops with UnavailableError once closures have waited too long without any trainer.

        Warns repeatedly before that, whatever the program waits for. If some trainers are
        connected, rounds begin after a while without the others, and closures that are bound to a
        trainer which stays away fail.
        """
        core = self._core
        with core.changed:
            self._begin_without_absent()
            absent_s = time.monotonic() - self._no_trainers_since_s
            if core.state.is_idle or core.fatal is not None:
                self._away_since_s.clear()
                self._warn_at_s = None
                return
            self._warn_of_missing()
            if core.outboxes:
                self._fail_bound_to_absent()
            elif absent_s > self._trainer_timeout_s:
                core.stop(
                    UnavailableError(
                        f"no trainer could be reached for {absent_s:.0f} s while "
                        f"{len(core.closures)} closures wait; start the cluster's 'worker' tasks"
                    )
                )

    def _begin_without_absent(self) -> None:
        """Lets rounds begin, after a while, without trainers that never joined."""
        state = self._core.state
        absent = state.round.absent if self._core.in_rounds and state.trainers else ()
        if absent and time.monotonic() - self._joining_since_s > ABSENT_TIMEOUT_S:
            logger.warning(
                "rounds begin without trainers %s, which have not joined", sorted(absent)
            )
            self._core.apply(rounds.give_up_absent(state))
            self._core.make_progress()

    def _fail_bound_to_absent(self) -> None:
        core, now_s = self._core, time.monotonic()
        away = set(core.state.queues.bound_waiting) - core.outboxes.trainers
        self._away_since_s = {t: self._away_since_s.get(t, now_s) for t in away}
        for trainer, since_s in self._away_since_s.items():
            queue = core.state.queues.bound_waiting.get(trainer)
            if queue and now_s - since_s > self._trainer_timeout_s:
                core.closures[queue.first].error = UnavailableError(
                    f"trainer {trainer} could not be reached for {now_s - since_s:.0f} s while "
                    f"{len(queue)} closures that are bound to it wait; start the cluster's "
                    f"'worker' task {trainer}, or schedule them without trainer="
                )
                core.apply(decide.fail_bound_to(core.state, trainer))

    def _warn_of_missing(self) -> None:
        missing, now_s = self._missing(), time.monotonic()
        if not missing:
            self._warn_at_s = None
        elif self._warn_at_s is None:
            self._warn_at_s = now_s + _WARN_AFTER_S
        elif now_s >= self._warn_at_s:
            logger.warning("waiting for %s to connect", missing)
            self._warn_at_s = now_s + _WARN_AFTER_S

    def _missing(self) -> str:
        """Names the trainers that closures cannot continue without; empty if there are none."""
        core = self._core
        if not core.outboxes:
            return "a trainer"
        away = sorted(set(core.state.queues.bound_waiting) - core.outboxes.trainers)
        return f"trainers {away}, which closures are bound to," if away else ""
