"""One consumer's stream from one worker: it asks for rounds and receives their elements.

Responsible for one exchange and for the asks that are in flight. Knows the frame format, but not
which worker gives which round. Invariant: every round that was asked for is answered by one frame,
in the order of the asks, or the stream breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from dataservice.client.worker_stream import WorkerStream
from dataservice.runtime.exchanges.transport import AnyExchange
from dataservice.runtime.threads import RECHECK_S
from dataservice.wire.elements import Ask, FrameKind, pack_asks


class RoundStream(WorkerStream):
    """A stream that receives the rounds it is told to ask for."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._asks: list[Ask] = []
        self._low = 0
        self._changed = threading.Condition()

    def ask(self, asks: Sequence[Ask], low: int) -> None:
        """Asks for further rounds. `low` is the low-water mark: all consumers are done below it."""
        with self._changed:
            self._asks += asks
            self._low = low
            self._changed.notify_all()

    def drop(self) -> None:
        """Ends the stream without waiting; no more frames are passed on. Idempotent."""
        super().drop()
        with self._changed:
            self._changed.notify_all()

    def _converse(self, exchange: AnyExchange) -> None:
        due = 0
        while not self._dropped:
            asks, low = self._take_asks(may_wait=not due)
            if asks:
                exchange.send(pack_asks(asks, low))
                due += sum(ask.end - ask.first for ask in asks)
            if due and self._next_frame(exchange).kind is FrameKind.DATA:
                due -= 1

    def _take_asks(self, *, may_wait: bool) -> tuple[list[Ask], int]:
        """Returns the asks to send, and the low-water mark.

        With `may_wait`, that is while no round is in flight, waits up to `RECHECK_S` for an ask.
        """
        with self._changed:
            if may_wait and not self._asks and not self._dropped:
                self._changed.wait(RECHECK_S)
            asks, self._asks = self._asks, []
            return asks, self._low
