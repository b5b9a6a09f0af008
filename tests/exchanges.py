"""A request with one reply, over any kind of exchange."""

from __future__ import annotations

from typing import Any

from dataservice.runtime.exchanges.message import Message
from dataservice.runtime.exchanges.transport import AnyExchange


def answer_to(
    exchange: AnyExchange, header: bytes, body: Any = None, *, timeout_s: float
) -> Message:
    """Sends a message and returns the one reply to it; for one thread at a time."""
    exchange.send(header, body, timeout_s=timeout_s)
    answer = exchange.recv(timeout_s)
    assert answer is not None, "the server ended the exchange without an answer"
    return answer
