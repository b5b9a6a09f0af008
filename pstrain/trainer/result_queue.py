"""Batches results for the coordinator: those of about the same time travel in one message.

A message and its reply cost the two processes a third of the time of a small step. Knows nothing of
gRPC, nor of what closures do. Invariant: messages are taken in the order in which they were put,
and delay no work. A result that the coordinator has to decide on is taken at once. So are all once
as many closures have ended as are left here, so that the trainer never runs out of work meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from pstrain.wire import trainer_pb2 as pb

HOLD_S: Final = 0.005
"""How long a result may be delayed for each closure that waits when it is put."""
HOLD_MAX_S: Final = 0.1
"""The longest delay: the time of half the work that may wait at a trainer. Usually as many closures
have ended by then as are left, which ends the delay earlier."""
RESULTS_PER_MESSAGE: Final = 64
_MESSAGE_BYTES: Final = 1 << 20

Outgoing: TypeAlias = "pb.RunReply | Exception | None"
"""A message to send; the error that ends the stream; None for its regular end."""


class ResultQueue:
    """A queue from the threads that run closures to the one that sends results. Thread-safe.

    ``waiting_count`` returns how many closures wait at this trainer. The sending thread is woken at
    most twice for a message, however many results are in it.
    """

    def __init__(self, waiting_count: Callable[[], int]) -> None:
        self._waiting_count = waiting_count
        # Code that does not wait takes the lock itself: a Condition takes it by Python calls.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._messages: deque[Outgoing] = deque()
        self._last_bytes = 0
        self._is_urgent = False

    def put(self, message: Outgoing) -> None:
        """Adds a message, which may be merged into another; the caller must not use it again."""
        with self._lock:
            is_first = not self._messages
            self._add(message)
            if is_first or self._is_due():
                self._changed.notify()

    def take(self) -> Outgoing:
        """Returns the next message; blocks until there is one, and while others may join it."""
        with self._lock:
            self._changed.wait_for(lambda: self._messages)
            self._changed.wait_for(self._is_due, min(HOLD_S * self._waiting_count(), HOLD_MAX_S))
            message = self._messages.popleft()
            self._is_urgent = bool(self._messages)
            return message

    def _add(self, message: Outgoing) -> None:
        size_bytes = message.ByteSize() if isinstance(message, pb.RunReply) else 0
        last = self._messages[-1] if self._messages else None
        if isinstance(last, pb.RunReply) and isinstance(message, pb.RunReply) and self._fits(last):
            last.MergeFrom(message)
            self._last_bytes += size_bytes
        else:
            self._messages.append(message)
            self._last_bytes = size_bytes
        self._is_urgent = self._is_urgent or _is_urgent(message)

    def _fits(self, last: pb.RunReply) -> bool:
        return len(last.results) < RESULTS_PER_MESSAGE and self._last_bytes < _MESSAGE_BYTES

    def _is_due(self) -> bool:
        first = self._messages[0]
        if self._is_urgent or len(self._messages) > 1 or not isinstance(first, pb.RunReply):
            return True
        return len(first.results) >= min(self._waiting_count(), RESULTS_PER_MESSAGE)


def _is_urgent(message: Outgoing) -> bool:
    """True if the coordinator may be waiting for it, whatever work is left here."""
    if not isinstance(message, pb.RunReply) or message.services or message.positions:
        return True
    if message.cancels:
        return True
    return any(result.needs_settling or result.is_prepared for result in message.results)
