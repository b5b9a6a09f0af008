"""The scheduler's part in saves: a barrier in which no closure runs, and the data positions there.

Knows neither files nor servers. Invariant: while a thread is in the barrier or waits to enter it,
no closure starts except those that a round which has begun needs.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pstrain.coordinator import decide
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import AskPosition
from pstrain.coordinator.waits import Waits
from pstrain.errors import FailedPreconditionError


class Barrier:
    """The barrier of one scheduler. Thread-safe."""

    def __init__(self, core: Core, waits: Waits) -> None:
        self._core = core
        self._waits = waits
        self._holders: set[object] = set()
        self._positions: dict[int, Any] = {}
        self._unanswered: set[int] = set()  # trainers that were asked for their positions

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Opens a scope in which no closure runs; entered once running closures have ended.

        Raises DeadlineExceededError after ``timeout_s``; scheduling then continues. A thread may
        enter it more than once.
        """
        core = self._core
        is_outermost = not self.is_held_here()
        with core.changed:
            core.apply(decide.hold())
        try:
            with core.changed:
                deadline_s = time.monotonic() + timeout_s
                # Decides a round that waits for closures not scheduled yet: none come meanwhile.
                core.make_progress()
                self._wait_settled(deadline_s, "closures to end, to save")
                # If a restore runs closures again, the save records how many parts each has made.
                while is_outermost and core.kept is None and self._can_finish_parts():
                    self._finish_partly_committed(deadline_s)
            self._holders.add(threading.current_thread())
            yield
        finally:
            if is_outermost:
                self._holders.discard(threading.current_thread())
            with core.changed:
                core.apply(decide.resume(core.state))
                core.make_progress()
                core.changed.notify_all()

    def _finish_partly_committed(self, deadline_s: float) -> None:
        """Lets closures run until those that a lost trainer has committed in part have ended.

        A save then contains every closure as a whole or not at all.
        """
        core = self._core
        core.apply(decide.resume(core.state))
        try:
            core.make_progress()
            core.changed.notify_all()
            self._waits.until(
                lambda: not self._can_finish_parts(),
                deadline_s,
                "closures that a lost trainer has made in part to run again, to save",
            )
        finally:
            core.apply(decide.hold())
        core.make_progress()
        self._wait_settled(deadline_s, "closures to end, to save")

    def _can_finish_parts(self) -> bool:
        """True if closures that were committed in part are to run again, and may.

        During a restore none starts, and the restore itself waits for the save, which then fails.
        """
        return self._core.state.has_partly_committed and not self._core.rolling_back

    def is_held_here(self) -> bool:
        """True if this thread is inside the barrier, which a restore may have to wait for."""
        return threading.current_thread() in self._holders

    def check_not_held(self) -> None:
        """Raises FailedPreconditionError inside the barrier, where a wait would never end."""
        if self.is_held_here():
            raise FailedPreconditionError(
                "no closure runs inside of coordinator.barrier(), so waiting for one there would "
                "never end: join() and fetch() before it or after it"
            )

    def positions(self, resource_id: str, timeout_s: float) -> dict[int, Any]:
        """Returns the position that each connected trainer reports; only while nothing runs."""
        core, deadline_s = self._core, time.monotonic() + timeout_s
        with core.changed:
            while True:
                self._wait_settled(deadline_s, "lost trainers to be settled")
                losses = core.state.lost_count
                self._positions = {}
                # A trainer that joins later has taken nothing, and is not asked.
                self._unanswered = set(core.outboxes.trainers)
                core.outboxes.put_all(AskPosition(resource_id))
                self._waits.until(
                    functools.partial(self._is_answered_or_lost, losses),
                    deadline_s,
                    "trainers to say how far their data is",
                )
                # After a loss the others know what was used up once it is settled: ask again.
                if not self._has_lost_since(losses):
                    return dict(self._positions)

    def position(self, trainer: int, position: Any) -> None:
        """Takes a trainer's answer to :meth:`positions`: a position, or the Exception it met."""
        with self._core.changed:
            self._positions[trainer] = position
            self._unanswered.discard(trainer)
            if not self._unanswered:
                self._core.changed.notify_all()

    def _is_answered_or_lost(self, losses: int) -> bool:
        return not self._unanswered or self._has_lost_since(losses)

    def _has_lost_since(self, losses: int) -> bool:
        """True if a trainer was lost after so many others; its loss may not be settled yet."""
        state = self._core.state
        return state.lost_count != losses or not state.is_settled

    def _wait_settled(self, deadline_s: float, what: str) -> None:
        self._waits.until(lambda: self._core.state.is_settled, deadline_s, what)
