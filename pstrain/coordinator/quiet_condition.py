"""The scheduler's lock and condition, whose holder Ctrl-C does not interrupt.

An interrupt between two changes of the scheduler's state would leave closures that never end. Knows
nothing of that state. Invariant: in the main thread an interrupt is raised only where the thread
waits for the condition, or after it has released the lock; a second one before that is raised at
once.
"""

from __future__ import annotations

import math
import threading
from types import TracebackType

from dataservice.runtime.process.interrupts import HeldInterrupts


class QuietCondition(threading.Condition):
    """A `threading.Condition` with a reentrant lock, in which interrupts are held back.

    Has no effect in programs that handle SIGINT by themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self._interrupts = HeldInterrupts()
        self._main_thread = threading.main_thread().ident
        self._depth = 0  # of the main thread, which alone uses it

    def __enter__(self) -> bool:
        if threading.get_ident() != self._main_thread:
            return super().__enter__()
        if not self._depth:
            self._interrupts.__enter__()
        self._depth += 1
        try:
            return super().__enter__()
        except BaseException:  # a second interrupt
            self._leave()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if threading.get_ident() == self._main_thread:
            self._leave()

    def _leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._interrupts.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits as `threading.Condition` does; raises an interrupt within 0.1 s.

        May return True without a notice, so what is waited for must be checked in a loop, as
        `wait_for` does.
        """
        if threading.get_ident() != self._main_thread:
            return super().wait(timeout)
        self._interrupts.let_through()
        left_s = math.inf if timeout is None else timeout
        slice_s = self._interrupts.poll_s(left_s)
        if super().wait(None if slice_s == math.inf else max(0.0, slice_s)):
            return True
        # A notice that came as the slice ended is lost: only a look can tell.
        return slice_s < left_s
