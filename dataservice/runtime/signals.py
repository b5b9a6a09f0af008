"""What a server's main thread waits for to end: SIGTERM or SIGINT, as often as they come.

A handler runs between two instructions of the main thread, also of one that has just taken the lock
of the event that it waits for; a handler that sets this event then waits for itself, for ever. So
handlers put into a queue, which may be interrupted anywhere. Invariant: no number of signals, and
no moment at which they come, keeps a server from ending.
"""

from __future__ import annotations

import queue
import signal
from types import FrameType

__all__ = ["StopSignals"]


class StopSignals:
    """Catches both signals from now on. To be made, and waited for, by the main thread.

    ``once``: another signal then ends the process at once.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._once = once
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def is_set(self) -> bool:
        """Whether one came."""
        return not self._came.empty()

    def wait(self, timeout_s: float) -> bool:
        """Whether one came by then; returns at once when it has."""
        try:
            self._came.put(self._came.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._once:
            signal.signal(number, signal.SIG_DFL)
        self._came.put(number)
