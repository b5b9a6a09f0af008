"""Logs once per process that kernels are being compiled, so that the user knows why they wait.

Adds up the time that compiling has taken. Knows neither kernels nor caches. Invariant: logs nothing
if all kernels were in the cache, or if compiling the others took too short a time to be noticed.
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
    """The time that this process has spent compiling, and whether it has said so. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told = False
        self._spent_s = self._since_s = 0.0

    def begin(self) -> None:
        """Starts the clock: a function is not in the cache and is compiled now."""
        self._since_s = self._clock()

    def end(self) -> None:
        """Adds the time of a compiled function, which includes the functions that it calls."""
        now_s = self._clock()
        self._spent_s, self._since_s = self._spent_s + now_s - self._since_s, now_s
        if self._spent_s > _NOTICED_AFTER_S:
            self.tell()

    def tell(self) -> None:
        """Logs the notice, unless it was logged before."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.warning(_TEXT)


notice: Final = CompileNotice()
