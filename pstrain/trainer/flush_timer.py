"""A timer thread, which wakes periodically while something is held back.

Knows nothing of what is held back. Invariant: while nothing is left and nothing was held back since
the last flush, the thread sleeps and costs nothing; otherwise it wakes at most once a period,
however much is held back meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class FlushTimer:
    """Calls ``flush`` every ``period_s`` after :meth:`arm`, until it says that nothing is left."""

    def __init__(self, flush: Callable[[], bool], period_s: float) -> None:
        self._flush = flush
        self._period_s = period_s
        # Code that does not wait takes the lock itself: a Condition takes it by Python calls.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._noted = self._seen = 0
        self._is_idle = self._is_closed = False
        self._thread: threading.Thread | None = None

    def arm(self) -> None:
        """Notes that something is held back; the first call starts the thread."""
        with self._lock:
            self._noted += 1
            if self._is_idle:
                self._changed.notify_all()
            elif self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="flush-timer", daemon=True)
                self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Ends the thread; waits at most ``timeout_s`` for a flush under way. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        is_left = False
        while not self._is_over(is_left):
            is_left = self._flush()

    def _is_over(self, is_left: bool) -> bool:
        """Waits until it is time for the next flush; True once closed."""
        with self._lock:
            self._is_idle = not is_left and self._noted == self._seen
            if self._is_idle:
                self._changed.wait_for(lambda: self._is_closed or self._noted != self._seen)
            self._is_idle, self._seen = False, self._noted
            return self._changed.wait_for(lambda: self._is_closed, self._period_s)
