"""The signals of a server: its main thread waits here for SIGTERM or SIGINT, which end it.

A signal handler runs between two instructions of the main thread, perhaps just after the main
thread has taken the lock of the event that it waits for. A handler that sets this event would then
wait for its own thread for ever. So the handler puts into a `SimpleQueue`, which is reentrant.
Knows nothing of servers. Invariant: no number of signals, and no moment at which they come, keeps
a server from ending.
"""

from __future__ import annotations

import faulthandler
import queue
import signal
from types import FrameType
from typing import Final

_STDERR: Final = 2


class StopSignals:
    """The stop signals of this process, caught from its construction on.

    SIGUSR1 writes the stacks of all threads to stderr, and ends nothing.

    Only the main thread may make it and wait for it. With ``once``, a second signal of the same
    number ends the process at once.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._once = once
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        faulthandler.register(signal.SIGUSR1, file=_STDERR)

    def is_set(self) -> bool:
        """True if a signal has come."""
        return not self._came.empty()

    def wait(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for a signal; returns whether one has come."""
        try:
            self._came.put(self._came.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._once:
            signal.signal(number, signal.SIG_DFL)
        self._came.put(number)
