"""What a server receives of a client while it waits for a request, and when it stops to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from dataservice.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.exchanges.connection_channel import ConnectionChannel
from dataservice.runtime.exchanges.message import Kind, Received

LATE = DeadlineExceededError("nothing came")


class Peer:
    """A connection from which these messages, ends and errors come, one for each wait."""

    shares_memory = False

    def __init__(self, coming: Iterable[Received | Exception | None], rests_after: int = 0) -> None:
        self._coming = list(coming)
        self._rests_at = len(self._coming) - rests_after

    @property
    def may_rest(self) -> bool:
        return len(self._coming) <= self._rests_at

    def receive(self, deadline_s: float) -> Received | None:
        self.deadline_s = deadline_s
        next_one = self._coming.pop(0)
        if isinstance(next_one, Exception):
            raise next_one
        return next_one


def channel_of(peer: Any) -> ConnectionChannel:
    return ConnectionChannel(peer, threading.Event(), "peer")


def message(header: bytes) -> Received:
    return Received(Kind.MESSAGE, header, None)


def test_request_that_was_awaited_is_received_once() -> None:
    channel = channel_of(Peer([message(b"first"), message(b"second"), None]))
    for header in (b"first", b"second"):
        assert channel.await_request(time.monotonic())
        received = channel.recv()
        assert received is not None
        assert received.header == header
    assert channel.await_request(time.monotonic())
    assert channel.recv() is None


def test_client_that_sends_nothing_is_not_awaited_beyond_the_deadline() -> None:
    channel = channel_of(Peer([LATE, message(b"later")]))
    assert not channel.await_request(time.monotonic())
    assert not channel.idle
    assert channel.await_request(time.monotonic())


def test_client_is_awaited_until_its_connection_may_rest() -> None:
    peer = Peer([LATE, LATE, LATE, message(b"later")], rests_after=3)
    channel = channel_of(peer)
    began_s = time.monotonic()
    assert not channel.await_request(began_s)
    assert peer.deadline_s > began_s, "a thread that goes on must wait, not spin"
    assert channel.await_request(time.monotonic())


def test_wait_ends_with_the_client_and_with_the_server() -> None:
    with pytest.raises(CancelledError, match="gone"):
        channel_of(Peer([UnavailableError("broken")])).await_request(time.monotonic())
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(CancelledError, match="stops"):
        ConnectionChannel(Peer([]), stopped, "peer").await_request(time.monotonic())  # type: ignore[arg-type]


def test_client_must_send_messages_after_its_command() -> None:
    channel = channel_of(Peer([Received(Kind.OPEN, b"hello again", None)]))
    with pytest.raises(InvalidArgumentError, match="kind OPEN"):
        channel.recv()
    assert not channel.idle


def test_empty_message_is_refused() -> None:
    """The client would take one without header and body for no message of its exchange."""
    with pytest.raises(InvalidArgumentError, match="neither"):
        channel_of(Peer([])).send(b"")
