"""Keeps functions that a program schedules in its own process apart from what must see none run.

Knows neither functions nor checkpoints. Invariant: while a thread is in a quiet scope that it has
entered outside of any function, no function runs in another thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dataservice.runtime.threads import wait_until
from pstrain.config import ParameterConfig
from pstrain.errors import DeadlineExceededError

_TIMEOUT_S: Final = ParameterConfig().transfer_timeout_s


class ClosureGate:
    """Functions that run side by side, and scopes in which none does. Thread-safe.

    A thread may enter any number of scopes of both kinds: what it runs itself, it waits for never.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[threading.Thread] = Counter()
        self._quiet: Counter[threading.Thread] = Counter()

    @property
    def is_awaited(self) -> bool:
        """True if a thread is in a quiet scope, or waits to enter it."""
        return bool(self._quiet)

    @contextmanager
    def running(self, left_s: float | None = None) -> Iterator[bool]:
        """Opens a scope in which this thread runs a function; waits until no other is quiet.

        Yields False, if that took ``left_s``: the function must not run.
        """
        me = threading.current_thread()
        with self._changed:
            may_run = not self._quiet or self._wait(
                lambda: me in self._running or not self._quiet.keys() - {me}, left_s
            )
            if may_run:
                self._running[me] += 1
        try:
            yield may_run
        finally:
            if may_run:
                self._leave(self._running, me)

    @contextmanager
    def quiet(self, timeout_s: float = _TIMEOUT_S) -> Iterator[None]:
        """Opens a scope in which no other thread runs a function; entered once those have ended.

        Inside of a function it waits for no other, which may itself be waiting so. Raises
        DeadlineExceededError after ``timeout_s``.
        """
        me = threading.current_thread()
        with self._changed:
            self._quiet[me] += 1
        try:
            with self._changed:
                if not self._wait(lambda: me in self._running or not self._running, timeout_s):
                    raise DeadlineExceededError(
                        "gave up waiting for functions that other threads have scheduled to end, "
                        f"to save, after {timeout_s:g} s"
                    )
            yield
        finally:
            self._leave(self._quiet, me)

    def _wait(self, is_free: Callable[[], bool], timeout_s: float | None) -> bool:
        return wait_until(lambda wait_s: self._changed.wait_for(is_free, wait_s), timeout_s)

    def _leave(self, threads: Counter[threading.Thread], me: threading.Thread) -> None:
        with self._changed:
            threads[me] -= 1
            if not threads[me]:
                del threads[me]
                self._changed.notify_all()


CLOSURES: Final = ClosureGate()
"""The gate of this process, whose functions may change any variable in it."""
