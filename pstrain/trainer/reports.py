"""Batches results for the coordinator: those that end at about the same time travel together.

A message and its answer take two processes a third of the time of a small step. Knows nothing of
gRPC, nor of what closures do. Invariants: what was put is taken in its order; nobody waits for what
lies here: what the coordinator decides by hearing is taken at once, and so is all once as many
have ended as are left to do, so that the trainer never runs out of work meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from pstrain.wire import trainer_pb2 as pb

HOLD_S: Final = 0.005
"""How long a result may lie here, for each closure that waits when it comes."""
HOLD_MAX_S: Final = 0.1
"""As long as half of the work takes that may wait here: that half have ended comes first."""
RESULTS_PER_MESSAGE: Final = 64
_MESSAGE_BYTES: Final = 1 << 20

Ended: TypeAlias = "pb.RunReply | Exception | None"
"""Something to tell; the error that ends the stream; None: its end."""


class Reports:
    """Between the threads that run closures and the one that tells of them. Thread-safe.

    ``to_do``: how many closures wait here to be run. The thread that takes is woken twice for a
    message, however many results are in it.
    """

    def __init__(self, to_do: Callable[[], int]) -> None:
        self._to_do = to_do
        # Taken by itself where nobody waits: a condition takes its lock by calls of Python.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._messages: deque[Ended] = deque()
        self._last_bytes = 0
        self._is_urgent = False

    def put(self, ended: Ended) -> None:
        """Gives it away: it may be made part of another message."""
        with self._lock:
            is_first = not self._messages
            self._add(ended)
            if is_first or self._is_due():
                self._changed.notify()

    def take(self) -> Ended:
        """The next message; blocks until there is one, and while others may join it."""
        with self._lock:
            self._changed.wait_for(lambda: self._messages)
            self._changed.wait_for(self._is_due, min(HOLD_S * self._to_do(), HOLD_MAX_S))
            message = self._messages.popleft()
            self._is_urgent = bool(self._messages)
            return message

    def _add(self, ended: Ended) -> None:
        size_bytes = ended.ByteSize() if isinstance(ended, pb.RunReply) else 0
        last = self._messages[-1] if self._messages else None
        if isinstance(last, pb.RunReply) and isinstance(ended, pb.RunReply) and self._fits(last):
            last.MergeFrom(ended)
            self._last_bytes += size_bytes
        else:
            self._messages.append(ended)
            self._last_bytes = size_bytes
        self._is_urgent = self._is_urgent or _is_urgent(ended)

    def _fits(self, last: pb.RunReply) -> bool:
        return len(last.results) < RESULTS_PER_MESSAGE and self._last_bytes < _MESSAGE_BYTES

    def _is_due(self) -> bool:
        first = self._messages[0]
        if self._is_urgent or len(self._messages) > 1 or not isinstance(first, pb.RunReply):
            return True
        return len(first.results) >= min(self._to_do(), RESULTS_PER_MESSAGE)


def _is_urgent(ended: Ended) -> bool:
    """Whether somebody may wait for it, whatever there is to do."""
    if not isinstance(ended, pb.RunReply) or ended.services or ended.positions:
        return True
    if ended.cancels:
        return True
    return any(result.needs_settling or result.is_prepared for result in ended.results)
