"""One consumer's stream from one worker: it asks for rounds and receives their elements.

Knows Flight and the frame format, nothing of who gives which round. Invariant: every round that was
asked for is answered by one frame, in the order of the asks, or the stream breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from dataservice.client.worker_stream import WorkerStream
from dataservice.errors import UnavailableError
from dataservice.runtime.transport import AnyExchange
from dataservice.wire.elements import Ask, FrameKind, pack_asks, unpack

_RECHECK_S = 1.0


class RoundStream(WorkerStream):
    """Receives the rounds that it is told to ask for."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._asks: list[Ask] = []
        self._low = 0
        self._news = threading.Condition()

    def ask(self, asks: Sequence[Ask], low: int) -> None:
        """Asks for these rounds too. All consumers are done with those below `low`."""
        with self._news:
            self._asks += asks
            self._low = low
            self._news.notify_all()

    def drop(self) -> None:
        """Passes nothing on any more and ends the stream, without waiting. Idempotent."""
        super().drop()
        with self._news:
            self._news.notify_all()

    def _converse(self, exchange: AnyExchange) -> None:
        due = 0
        while not self._dropped:
            asks, low = self._take_asks(may_wait=not due)
            if asks:
                exchange.send(pack_asks(asks, low))
                due += sum(ask.end - ask.first for ask in asks)
            if not due:
                continue
            message = exchange.recv(self._silence_s)
            if message is None:
                raise UnavailableError(f"worker {self.address} ended its stream early")
            header = unpack(message.header)
            if header.kind is FrameKind.DATA:
                due -= 1
                self._pass_on(header, message, is_checked=not exchange.shares_memory)

    def _take_asks(self, *, may_wait: bool) -> tuple[list[Ask], int]:
        """What is to be asked for; while nothing is under way, waits for that."""
        with self._news:
            if may_wait and not self._asks and not self._dropped:
                self._news.wait(_RECHECK_S)
            asks, self._asks = self._asks, []
            return asks, self._low
