"""A lock for sections of microseconds that many threads enter.

`threading.Lock` passes to a thread that waits for it without the interpreter: until that thread
runs again nobody is inside, all who come queue up, and each in turn is let in without the
interpreter. Where there are many threads a section then takes as long as the wait for the
interpreter. This lock is taken by threads that run, so it is hardly ever found taken. Invariant: it
excludes as any lock does; who has tried for some milliseconds stands in line.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

_TRIES: Final = 40
_PAUSE_S: Final = 50e-6
# Held for ever: to wait for it is to let the others run for a moment.
_NEVER: Final = threading.Lock()
_NEVER.acquire()


class BriefLock:
    """As `threading.Lock`, also for a `threading.Condition`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock; whether that was possible, in time."""
        if self._lock.acquire(False):
            return True
        if not blocking or timeout >= 0:
            return self._lock.acquire(blocking, timeout)
        for _ in range(_TRIES):
            _NEVER.acquire(timeout=_PAUSE_S)
            if self._lock.acquire(False):
                return True
        return self._lock.acquire()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
