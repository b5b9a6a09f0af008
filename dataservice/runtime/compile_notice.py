"""Tells once in a process that kernels are being compiled, where a user waits for that.

Adds up what compiling took so far. Knows neither kernels nor caches. Invariant: it says nothing
where all were found in the cache, or the few that were not took no longer than a user notices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_NOTICED_AFTER_S: Final = 2.0
_TEXT: Final = (
    "compiling kernels, which takes about a minute the first time on a machine; later programs "
    "find them in Numba's cache"
)


class CompileNotice:
    """Of one process. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told = False
        self._spent_s = self._since_s = 0.0

    def begin(self) -> None:
        """A function is not in the cache, and is compiled from now on."""
        self._since_s = self._clock()

    def end(self) -> None:
        """One is compiled; those that it calls are within its time, and have ended before."""
        now_s = self._clock()
        self._spent_s, self._since_s = self._spent_s + now_s - self._since_s, now_s
        if self._spent_s > _NOTICED_AFTER_S:
            self.tell()

    def tell(self) -> None:
        """It will take long."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.warning(_TEXT)


notice: Final = CompileNotice()
