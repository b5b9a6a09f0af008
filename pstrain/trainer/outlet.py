"""What a trainer has to say to its coordinator, and when: results of several closures together.

A message and its answer take a tenth of the time of a small step, and so does waking the thread
that sends. So while there is enough to do, results wait for others, and nobody is woken for each.
Knows nothing of closures. Invariant: what somebody waits for is sent at once, and nothing waits
longer than `HOLD_MAX_S`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from pstrain.wire import trainer_pb2 as pb

HOLD_S: Final = 0.0025
"""How long a result waits for others, for each closure that waits here."""

HOLD_MAX_S: Final = 0.025

_RESULTS_PER_MESSAGE: Final = 64
_MESSAGE_BYTES: Final = 1 << 20
_ENOUGH_TO_DO: Final = 2

Ended = pb.RunReply | Exception | None
"""Something to say, the error that ends the stream, or its end."""


class Outlet:
    """Any thread puts, one gets. ``to_do`` says how many closures wait at this trainer.

    ``urgent``: set by who puts when it is time to send, for who holds results back.
    """

    def __init__(self, to_do: Callable[[], int], urgent: threading.Event | None = None) -> None:
        self._to_do = to_do
        self._items: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._urgent = urgent or threading.Event()

    def put(self, item: Ended) -> None:
        """Never blocks."""
        self._items.put(item)
        if not isinstance(item, pb.RunReply) or self._hold_s(item) <= 0:
            self._urgent.set()

    def get(self) -> Ended:
        """The next; blocks until there is one."""
        return self._items.get()

    def with_following(self, reply: pb.RunReply) -> pb.RunReply:
        """``reply`` with those that follow it soon, while there is other work to do meanwhile."""
        # Before looking: what is urgent and comes after that is not waited for.
        self._urgent.clear()
        if self._add_following(reply) and (hold_s := self._hold_s(reply)) > 0:
            self._urgent.wait(hold_s)
            self._add_following(reply)
        return reply

    def _add_following(self, reply: pb.RunReply) -> bool:
        """Adds what is there; whether more fits, and may follow."""
        size_bytes = reply.ByteSize()
        while len(reply.results) < _RESULTS_PER_MESSAGE and size_bytes < _MESSAGE_BYTES:
            try:
                following = self._items.get_nowait()
            except queue.Empty:
                return True
            if not isinstance(following, pb.RunReply):
                self._items.put(following)
                return False
            reply.MergeFrom(following)
            size_bytes += following.ByteSize()
        return False

    def _hold_s(self, reply: pb.RunReply) -> float:
        """How long nobody is kept waiting: enough is left to do, nothing is decided by hearing."""
        to_do = self._to_do()
        if to_do < _ENOUGH_TO_DO or reply.services or reply.positions:
            return 0.0
        if any(result.needs_settling or result.is_prepared for result in reply.results):
            return 0.0
        return min(HOLD_S * to_do, HOLD_MAX_S)
