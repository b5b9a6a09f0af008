"""Threads that can always be stopped.

Responsible for the thread on which every long-lived part of a server runs, which has an owner and a
bounded stop, for ending many threads together, and for waits that a signal can end. Knows no
network, nor what the threads do. Invariant: no call blocks past its time-out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# After this time a thread that waits for others looks again by itself. Whatever it waits for wakes
# it, so that is only for the bound that every wait has.
RECHECK_S: Final = 10.0
_SIGNAL_POLL_S = 0.5


def wait_until(wait: Callable[[float], bool], timeout_s: float | None = None) -> bool:
    """Calls `wait`, such as `Event.wait`, with short time-outs until it returns True.

    Returns False after `timeout_s`. A single long wait in the main thread would not wake for a
    signal that another thread took.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not wait(max(0.0, min(_SIGNAL_POLL_S, end_s - time.monotonic()))):
        if time.monotonic() >= end_s:
            return False
    return True


def end_threads(
    busy: Mapping[T, threading.Thread],
    cut: Callable[[T], object],
    *,
    grace_s: float,
    deadline_s: float,
) -> int:
    """Lets threads finish for `grace_s`, cuts what each of them serves, and waits for them.

    Waits until `deadline_s` (monotonic clock); returns how many have not ended by then.
    """
    grace_end_s = min(time.monotonic() + grace_s, deadline_s)
    for thread in busy.values():
        thread.join(max(0.0, grace_end_s - time.monotonic()))
    for served in busy:
        cut(served)
    for thread in busy.values():
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return sum(thread.is_alive() for thread in busy.values())


class StoppableThread:
    """A named daemon thread that an owner can stop.

    `target` receives the stop event and must return soon after it is set. An exception that leaves
    `target` is logged with its traceback and kept in `failure`; `on_failure`, if given, is called
    with it on the thread.
    """

    def __init__(
        self,
        target: Callable[[threading.Event], None],
        *,
        owner: str,
        name: str,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.name = f"{owner}:{name}"
        self.stop_event = threading.Event()
        self.failure: BaseException | None = None
        self._target = target
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> StoppableThread:
        """Starts the thread and returns this object."""
        self._thread.start()
        return self

    def is_alive(self) -> bool:
        """True if the thread has been started and has not ended."""
        return self._thread.is_alive()

    def request_stop(self) -> None:
        """Sets the stop event without waiting. Idempotent; from any thread."""
        self.stop_event.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Sets the stop event and waits; logs a warning and returns False if the thread still runs.

        Returns True at once for a thread that was never started. Returns False without waiting if
        called on the thread itself.
        """
        self.stop_event.set()
        if self._thread.ident is None:
            return True
        if self._thread is threading.current_thread():
            return False
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("thread %s still runs %.1f s after its stop", self.name, timeout_s)
            return False
        return True

    def _run(self) -> None:
        try:
            self._target(self.stop_event)
        except BaseException as error:
            self.failure = error
            logger.exception("thread %s ended with an error", self.name)
            if self._on_failure is not None:
                self._on_failure(error)
