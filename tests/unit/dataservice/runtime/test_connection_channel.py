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
    UnauthenticatedError,
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
        self.sent: list[Kind] = []
        self.is_lost = False
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

    def send(self, kind: Kind, *_: Any, deadline_s: float) -> None:
        assert deadline_s > time.monotonic()
        if self.is_lost:
            raise UnavailableError("broken")
        self.sent.append(kind)

    def await_close(self, _deadline_s: float) -> None: ...

    def is_gone(self) -> bool:
        return self.is_lost

    def trust(self) -> None: ...


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


def hello(text: bytes) -> Received:
    return Received(Kind.OPEN, text, None)


def test_client_that_shows_the_token_is_accepted() -> None:
    peer = Peer([hello(b'secret\n{"exchange": "echo"}')])
    handlers: Any = {"echo": "the handler"}
    assert channel_of(peer).greet("secret", handlers, "ps:1")[0] == "the handler"
    assert peer.sent == [Kind.OPEN]


@pytest.mark.parametrize(
    ("first", "error"),
    [
        pytest.param(None, InvalidArgumentError, id="the end"),
        pytest.param(message(b'secret\n{"exchange": "echo"}'), InvalidArgumentError, id="message"),
        pytest.param(hello(b'other\n{"exchange": "echo"}'), UnauthenticatedError, id="other token"),
        pytest.param(hello(b'\xff\n{"exchange": "echo"}'), UnauthenticatedError, id="no text"),
        pytest.param(hello(b"other\n{}"), UnauthenticatedError, id="no handler, but no token"),
    ],
)
def test_client_that_begins_otherwise_is_refused(
    first: Received | None, error: type[Exception]
) -> None:
    peer = Peer([first])
    with pytest.raises(error):
        channel_of(peer).greet("secret", {}, "ps:1")
    assert peer.sent == []


def test_sending_to_client_that_is_gone_says_so() -> None:
    peer = Peer([])
    channel = channel_of(peer)
    channel.send(b"reply")
    assert not channel.cancelled()
    peer.is_lost = True
    assert channel.cancelled()
    with pytest.raises(CancelledError, match="gone"):
        channel.send(b"reply")
    channel.done()  # nobody misses the end
    channel.fail(ValueError("x"))


def test_handler_sees_that_its_server_stops() -> None:
    stopping = threading.Event()
    peer: Any = Peer([])
    channel = ConnectionChannel(peer, stopping, "peer")
    assert not channel.cancelled()
    stopping.set()
    assert channel.cancelled()
