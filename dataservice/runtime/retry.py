"""The one rule by which a caller waits for a peer that does not answer.

Responsible for retrying with jittered exponential backoff until a deadline, and for log messages
meanwhile. Knows no transport: an attempt is any callable that raises UnavailableError or
DeadlineExceededError to be retried. Invariant: it returns or raises within the time-out plus one
attempt; any other error passes through at once.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
# Long enough that a thousand waiting workers do not overload a dispatcher that comes back.
MAX_PAUSE_S: Final = 1.0
FIRST_NOTICE_S: Final = 2.0
NOTICE_INTERVAL_S: Final = 10.0
_STOP_POLL_S: Final = 0.1
# An attempt with less time than this would only replace the real cause with its own time-out.
_SHORTEST_ATTEMPT_S: Final = 0.01

Reply = TypeVar("Reply")


def retry_until(
    attempt: Callable[[float], Reply],
    *,
    waiting_for: str,
    timeout_s: float,
    attempt_timeout_s: float,
    wait: Callable[[float], bool],
    should_stop: Callable[[], bool] | None = None,
    on_wait: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Reply:
    """Returns the result of the first ``attempt(limit_s)`` that succeeds.

    ``wait(seconds)`` pauses and returns True if the caller was closed (``Event.wait``).
    ``should_stop`` is asked between attempts and at least every 0.1 s of a pause. If either returns
    True, CancelledError is raised. ``on_wait`` is called after each failed attempt with the seconds
    waited so far. At the deadline an error of the same class as the last one is raised, which names
    ``waiting_for``.
    """
    waiting = _Waiting(waiting_for, timeout_s, wait, should_stop, clock)
    pause_s = FIRST_PAUSE_S
    limit_s = min(attempt_timeout_s, timeout_s)
    cause: UnavailableError | DeadlineExceededError | None = None
    while True:
        waiting.check_stop()
        try:
            return attempt(limit_s)
        except (UnavailableError, DeadlineExceededError) as error:
            # The time-out of an attempt that was cut short says less than the error before it.
            is_cut = limit_s < attempt_timeout_s and isinstance(error, DeadlineExceededError)
            cause = cause if is_cut and cause is not None else error
        if on_wait is not None:
            on_wait(waiting.waited_s())
        # Jitter keeps callers that lost the same peer from coming back in step.
        waiting.pause(pause_s * random.uniform(0.5, 1.0), cause)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
        limit_s = min(attempt_timeout_s, timeout_s - waiting.waited_s())
        if limit_s < _SHORTEST_ATTEMPT_S:
            raise type(cause)(
                f"gave up waiting for {waiting_for} after {timeout_s:g} s: {cause}"
            ) from cause


class _Waiting:
    """One wait in progress: its clock, its log messages, and the check whether to stop."""

    def __init__(
        self,
        waiting_for: str,
        timeout_s: float,
        wait: Callable[[float], bool],
        should_stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        self._waiting_for = waiting_for
        self._timeout_s = timeout_s
        self._wait = wait
        self._should_stop = should_stop
        self._clock = clock
        self._started_s = clock()
        self._next_notice_s = FIRST_NOTICE_S

    def waited_s(self) -> float:
        return self._clock() - self._started_s

    def check_stop(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise CancelledError(f"stopped while waiting for {self._waiting_for}")

    def pause(self, seconds: float, cause: DataServiceError) -> None:
        """Waits ``seconds``, at most until the deadline."""
        end_s = min(self.waited_s() + seconds, self._timeout_s)
        self._notice(cause)
        while (remaining_s := end_s - self.waited_s()) > 0:
            if self._wait(min(remaining_s, _STOP_POLL_S)):
                raise CancelledError(f"closed while waiting for {self._waiting_for}")
            self.check_stop()
            self._notice(cause)

    def _notice(self, cause: DataServiceError) -> None:
        waited_s = self.waited_s()
        if waited_s < self._next_notice_s:
            return
        self._next_notice_s = waited_s + NOTICE_INTERVAL_S
        logger.warning(
            "waiting for %s (%.0f s so far, giving up after %g s): %s",
            *(self._waiting_for, waited_s, self._timeout_s, cause),
        )
