"""A lock for sections of microseconds that many threads enter.

`threading.Lock` is handed to a waiting thread that does not hold the GIL. Until that thread has the
GIL, the lock is taken but no thread is in the section; all threads that arrive queue up, and each
of them gets the lock without the GIL too. With many threads each section then takes as long as the
wait for the GIL. This lock is acquired by threads that hold the GIL, so it is rarely found taken.
Knows nothing of the sections. Invariant: it excludes as any lock does; a thread that has tried for
some milliseconds waits for the lock in the normal way.
"""

from __future__ import annotations

import threading
from typing import Final

_TRIES: Final = 40
_PAUSE_S: Final = 50e-6
# Held for ever: waiting for it with a time-out lets other threads run for that time.
_NEVER: Final = threading.Lock()
_NEVER.acquire()


class BriefLock:
    """A lock that is used like `threading.Lock`, also in a `threading.Condition`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquires the lock; returns whether that was possible, in time."""
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

    def __exit__(self, *_exc: object) -> None:
        self.release()
