"""A thread that runs a whole plan into frames: the base of the producers without windows.

Knows nothing of how the elements are handed out. Invariant: once closed, the thread ends by
itself within a second, and threads that wait for frames are woken.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from dataservice.runtime.threads import StoppableThread


class Discardable(Protocol):
    """What the elements are put into."""

    def discard(self) -> None: ...


class PlanThread:
    """The base of a producer whose `_run` computes elements for `frames`."""

    def __init__(self, frames: Discardable, *, owner: str, name: str) -> None:
        self._sink = frames
        self._closed = False
        self._thread = StoppableThread(self._run, owner=owner, name=name)

    def start(self) -> None:
        """Starts computing."""
        self._thread.start()

    def close(self) -> None:
        """Stops without waiting. Idempotent."""
        self._closed = True
        self._sink.discard()

    def is_closed(self) -> bool:
        return self._closed

    def join(self, deadline_s: float) -> None:
        """After `close`: waits for the thread until this time of the monotonic clock."""
        self._thread.stop(max(0.0, deadline_s - time.monotonic()))

    def _run(self, stop: threading.Event) -> None:
        raise NotImplementedError
