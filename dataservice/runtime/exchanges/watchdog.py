"""The watchdog: ends waits that the operating system or a C library cannot bound by itself.

Responsible for calling the callback that ends a wait once the deadline of the wait has passed.
Knows nothing of what is waited for. Invariant: an armed wait is ended soon after its deadline
unless it was disarmed before; the callback runs on the watchdog's own thread.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

logger = logging.getLogger(__name__)

_NEVER_S = float("inf")


class Deadline:
    """A bound for repeated waits: the watchdog calls `on_expiry` if one takes too long.

    `on_expiry` must be thread safe, must not block, and should make the wait end. Arming costs one
    comparison in the usual case, so it can guard every message of a stream. It guards one wait at a
    time; use one Deadline for each thread that waits.
    """

    __slots__ = ("__weakref__", "_on_expiry", "_watchdog", "at_s", "expired", "timeout_s")

    def __init__(self, on_expiry: Callable[[], None], watchdog: Watchdog) -> None:
        self.at_s = _NEVER_S
        self.timeout_s = _NEVER_S
        self.expired = False
        self._on_expiry = on_expiry
        self._watchdog = watchdog

    def arm(self, timeout_s: float) -> None:
        """Starts a wait of at most `timeout_s`."""
        at_s = time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        self.at_s = at_s
        if at_s < self._watchdog.next_wake_s:
            self._watchdog.wake_by(at_s)

    def disarm(self) -> None:
        """Ends the wait. `expired` tells whether it was cut short."""
        self.at_s = _NEVER_S

    def expire(self) -> None:
        """Marks the wait as expired and ends it; called by the watchdog."""
        self.at_s = _NEVER_S
        self.expired = True
        self._on_expiry()


class Watchdog:
    """A thread that expires the armed deadlines of many waits.

    It sleeps until the earliest deadline seen in its last scan; arming a wait with a later deadline
    does not wake it. `shared()` returns the watchdog that lives as long as the process.
    """

    _shared: Watchdog | None = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.next_wake_s = _NEVER_S
        self._deadlines: weakref.WeakSet[Deadline] = weakref.WeakSet()
        self._wakeup = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @classmethod
    def shared(cls) -> Watchdog:
        """Returns the watchdog of this process, made on first use."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def deadline(self, on_expiry: Callable[[], None]) -> Deadline:
        """Returns a new Deadline; the watchdog refers to it weakly, so dropping it ends it."""
        deadline = Deadline(on_expiry, self)
        with self._wakeup:
            self._deadlines.add(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
        return deadline

    def wake_by(self, at_s: float) -> None:
        """Makes sure that the next scan is not after `at_s`."""
        with self._wakeup:
            if at_s < self.next_wake_s:
                self.next_wake_s = at_s
            self._wakeup.notify()

    def stop(self) -> None:
        """Ends the thread; deadlines armed later never expire."""
        with self._wakeup:
            self._stopped = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._wakeup:
                if self._stopped:
                    return
                due = self._scan()
                if not due:
                    remaining_s = self.next_wake_s - time.monotonic()
                    self._wakeup.wait(None if remaining_s == _NEVER_S else max(remaining_s, 0.0))
            for deadline in due:
                try:
                    deadline.expire()
                except Exception:
                    logger.exception("the action of an expired deadline failed")
            del due

    def _scan(self) -> list[Deadline]:
        # From here on every arming thread takes the slow path and waits for the lock. So each armed
        # deadline is either seen by this scan, or lowers next_wake_s after it.
        self.next_wake_s = _NEVER_S
        now_s = time.monotonic()
        armed = [(deadline.at_s, deadline) for deadline in self._deadlines]
        self.next_wake_s = min((at_s for at_s, _ in armed if at_s > now_s), default=_NEVER_S)
        return [deadline for at_s, deadline in armed if at_s <= now_s]
