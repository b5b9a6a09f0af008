"""Programs that cancel closures, set short deadlines and priorities, and use values as inputs.

Real: the scheduler, the links, the trainers' committers. The checker's invariants: a closure that
was reported as cancelled is applied on no server, then or later, and its rows are used up once its
end is heard. I15: no closure starts while one of a higher priority waits.
"""

from __future__ import annotations

from random import Random
from typing import Any

from pstrain.coordinator import events as ev
from pstrain.coordinator.core import Core
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import DataServiceError, DeadlineExceededError
from tests.simulation.fibers import wait
from tests.simulation.shadow import Violation
from tests.simulation.world import STAGE


class OrderedCore(Core):
    """The real core, which checks that closures of a higher priority start first.

    Tells the checker the rows of a cancelled run when its end counts.
    """

    def apply(self, events: ev.Events) -> None:
        dropped = {event.closure for event in events if isinstance(event, ev.ClosureDropped)}
        for event in events:
            if isinstance(event, ev.ClosureCancelled) and event.closure not in dropped:
                self._note_spent(event)
            if isinstance(event, ev.ClosureStarted) and event.closure in self.state.waiting:
                self._check_order(event.closure, event.trainer, events)
            if isinstance(event, ev.EndMet):
                STAGE.world.end_met()
        super().apply(events)

    def _note_spent(self, event: ev.ClosureCancelled) -> None:
        is_asked = event.reason in (ev.Reason.ASKED, ev.Reason.OVERDUE)
        if is_asked and event.closure in self.state.cancelling:
            STAGE.world.checker.spend(self.closures[event.closure].error)

    def _check_order(self, closure: int, trainer: int, decided: ev.Events) -> None:
        """Checks I15; closures that start in the same decision may be in any order."""
        rank, _ = self.state.queues.rank(closure)
        together = {getattr(event, "closure", None) for event in decided}
        for each in self.state.waiting:
            met = self.state.ends.at_end(self.state.ends.needs_of(each))
            if each in together or trainer in met:
                continue  # starts as well, or the trainer has no data left for it
            if self.state.queues.rank(each)[0] < rank:
                raise Violation(f"I15: closure {closure} starts before {each}, of higher priority")


class ChangesOfMind:
    """Draws cancellations, deadlines and priorities; ``is_steady`` programs have none.

    Uses generators of its own, so that the network draws the same with and without it.
    """

    def __init__(self, node: Any, *, is_steady: bool) -> None:
        self._node = node
        self._dice = Random(f"cancels {node.world.seed}")
        self._urgency = Random(f"priorities {node.world.seed}")
        self._has_priorities = self._urgency.random() < 0.4 and not is_steady
        self._cancels = self._dice.random() < 0.4 and not is_steady

    def deadline_s(self) -> float | None:
        """Draws the deadline of the next closure, or None."""
        if not self._cancels or self._dice.random() < 0.8:
            return None
        return self._dice.choice((0.001, 0.05, 0.5, 5.0))

    def priority(self) -> int:
        """Draws the priority of the next closure."""
        return self._urgency.choice((0, 0, 0, 1, 5, -1)) if self._has_priorities else 0

    def consider(self, value: RemoteValue) -> None:
        """May cancel a closure after a while, in whatever state it is by then."""
        if self._cancels and self._dice.random() < 0.3:
            after_s = self._dice.choice((0.0, 0.01, 0.03, 0.1, 1.0)) * self._dice.random()
            timeout_s = self._dice.choice((None, None, None, 0.05))
            waits = self._dice.random() < 0.3
            self._node.spawn(self._cancel, value, after_s, timeout_s, waits)

    def _cancel(
        self, value: RemoteValue, after_s: float, timeout_s: float | None, waits: bool
    ) -> None:
        """Cancels a closure; with ``waits`` not before it has lost a trainer.

        A part of such a closure may have been applied already.
        """
        wait(after_s)
        while waits and not value.has_ended and not self._has_come_back(value.closure):
            wait(0.02)
        try:
            is_cancelled = value.cancel(timeout_s)
        except DeadlineExceededError:
            return
        except DataServiceError:
            # Scheduling is over, of which every caller is told.
            return
        if is_cancelled:
            STAGE.world.checker.cancelled(value.closure)

    def _has_come_back(self, closure: int) -> bool:
        state = self._node.core.state
        return bool(state.attempts.get(closure)) and closure not in state.running


class Needs:
    """Draws which closures need the values of which others, some of which never get a value.

    Uses a generator of its own, so that the network draws the same with and without it.
    """

    def __init__(self, seed: int, *, is_steady: bool) -> None:
        self._dice = Random(f"needs {seed}")
        self._is_used = self._dice.random() < 0.4 and not is_steady
        self._values: list[RemoteValue] = []

    def note(self, value: RemoteValue) -> None:
        """Lets a value be an input of later closures."""
        self._values.append(value)

    def inputs(self) -> tuple[RemoteValue, ...]:
        """Draws the inputs of the next closure, from the latest values."""
        if not self._is_used or not self._values or self._dice.random() < 0.6:
            return ()
        latest = self._values[-self._dice.choice((1, 3, 12)) :]
        return tuple({self._dice.choice(latest): None for _ in range(self._dice.choice((1, 2)))})
