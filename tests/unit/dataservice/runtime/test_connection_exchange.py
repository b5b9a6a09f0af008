"""How a client's exchange begins and ends, and which error its calls raise from then on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from dataservice.errors import (
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.message import Kind, Received, error_payload

ACCEPTED = Received(Kind.OPEN, b"", None)
GONE = UnavailableError("the peer is gone")


def message(header: bytes) -> Received:
    return Received(Kind.MESSAGE, header, None)


def failure(error: Exception) -> Received:
    return Received(Kind.ERROR, error_payload(error), None)


class Server:
    """The connection to a server that accepts, then says this; None is the end.

    As from a socket, what the server has said arrives even if the connection was shut down.
    """

    protocol, shares_memory, peer_error = "made up", False, None

    def __init__(self, *says: Received | Exception | None, accepts: bool = True) -> None:
        self._says = [ACCEPTED, *says] if accepts else list(says)
        self.refusal: Exception | None = None
        self.heard: list[tuple[Kind, bytes]] = []
        self.is_shut_down = self.is_closed = False

    def send(self, kind: Kind, header: bytes, _body: Any, *, deadline_s: float) -> None:
        assert deadline_s > time.monotonic()
        if self.refusal is not None:
            raise self.refusal
        self.heard.append((kind, header))

    def receive(self, deadline_s: float) -> Received | None:
        assert deadline_s > time.monotonic()
        if self.is_shut_down and not self._says:
            raise UnavailableError("shut down")
        said = self._says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def shut_down(self) -> None:
        self.is_shut_down = True

    def close(self) -> None:
        self.is_closed = True


def exchange_with(server: Any) -> ConnectionExchange:
    return ConnectionExchange(server, "ps:1", {"name": "pull"}, token="t", timeout_s=60.0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(None, UnavailableError("before it began"), id="end"),
        pytest.param(message(b"x"), DataLossError("MESSAGE where OPEN"), id="message"),
        pytest.param(
            Received(Kind.OPEN, b"t\n{}", None), DataLossError("not a server of this"), id="echo"
        ),
        pytest.param(
            failure(FailedPreconditionError("no")), FailedPreconditionError("no"), id="no"
        ),
        pytest.param(GONE, UnavailableError("'pull' with ps:1: the peer is gone"), id="gone"),
    ],
)
def test_exchange_that_is_not_accepted_leaves_no_connection(
    answer: Received | Exception | None, error: Exception
) -> None:
    server = Server(answer, accepts=False)
    with pytest.raises(type(error), match=str(error)):
        exchange_with(server)
    assert server.is_closed


def test_end_of_the_servers_messages_is_told_again_without_asking() -> None:
    exchange = exchange_with(Server(message(b"last"), None))
    received = exchange.recv(60.0)
    assert received is not None
    assert received.header == b"last"
    assert [exchange.recv(60.0) for _ in range(3)] == [None] * 3


def test_error_after_the_end_is_not_taken_for_the_end() -> None:
    server = Server(None)
    exchange = exchange_with(server)
    assert exchange.recv(60.0) is None
    server.refusal = GONE
    server._says = [failure(FailedPreconditionError("over"))]
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="over"):
            exchange.send(b"x")
    with pytest.raises(FailedPreconditionError, match="over"):
        exchange.recv(60.0)


def test_unexpected_kind_ends_the_exchange() -> None:
    server = Server(Received(Kind.OPEN, b"", None), message(b"later"))
    exchange = exchange_with(server)
    for _ in range(2):
        with pytest.raises(DataLossError, match="OPEN where MESSAGE"):
            exchange.recv(60.0)
    assert server.is_shut_down


def test_cancelled_exchange_says_so_in_all_calls() -> None:
    server = Server(message(b"unread"))
    exchange = exchange_with(server)
    exchange.cancel()
    assert server.is_shut_down
    for _ in range(2):
        with pytest.raises(CancelledError, match="'pull' with ps:1 was cancelled"):
            exchange.recv(60.0)
        with pytest.raises(CancelledError):
            exchange.send(b"x")
    assert server.heard == [(Kind.OPEN, b't\n{"name": "pull"}')]


def test_call_that_a_cancel_ends_does_not_blame_the_server() -> None:
    class CancelledMeanwhile(Server):
        def receive(self, deadline_s: float) -> Received | None:
            if not self._says:
                exchange.cancel()
            return super().receive(deadline_s)

    exchange = exchange_with(CancelledMeanwhile())
    with pytest.raises(CancelledError):
        exchange.recv(60.0)


def test_closing_ends_the_exchange_and_its_connection() -> None:
    server = Server()
    with exchange_with(server):
        assert not server.is_shut_down
    assert (server.is_shut_down, server.is_closed) == (True, True)


def test_mistake_of_the_caller_does_not_end_the_exchange() -> None:
    server = Server(InvalidArgumentError("hold on to less"), message(b"next"))
    exchange = exchange_with(server)
    server.refusal = InvalidArgumentError("too large")
    with pytest.raises(InvalidArgumentError, match=r"^too large"):
        exchange.send(b"x")
    with pytest.raises(InvalidArgumentError, match="neither"):
        exchange.send(b"")
    with pytest.raises(InvalidArgumentError, match=r"^hold on"):
        exchange.recv(60.0)
    server.refusal = None
    exchange.send(b"again")
    assert exchange.recv(60.0) is not None
    exchange.done_writing()
    assert server.heard[1:] == [(Kind.MESSAGE, b"again"), (Kind.DONE, b"")]


def test_failed_send_raises_why_the_server_had_ended_the_exchange() -> None:
    """Replies that nobody has read yet come before the reason."""
    server = Server(message(b"unread"), message(b"unread"), failure(FailedPreconditionError("old")))
    exchange = exchange_with(server)
    server.refusal = GONE
    with pytest.raises(FailedPreconditionError, match="old"):
        exchange.send(b"x")


@pytest.mark.parametrize("says", [[None], [GONE]])
def test_failed_send_without_a_reason_says_that_the_server_is_gone(
    says: Iterable[Exception | None],
) -> None:
    server = Server(*says)
    exchange = exchange_with(server)
    server.refusal = GONE
    for _ in range(2):
        with pytest.raises(UnavailableError, match="'pull' with ps:1: the peer is gone"):
            exchange.send(b"x")


def test_error_that_has_arrived_is_raised_by_a_send_that_succeeds() -> None:
    server = Server()
    exchange = exchange_with(server)
    server.peer_error = error_payload(FailedPreconditionError("over"))  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="over"):
            exchange.send(b"x")
    assert server.heard[1:] == [(Kind.MESSAGE, b"x")]


def test_deadline_ends_the_exchange() -> None:
    exchange = exchange_with(Server(DeadlineExceededError("nothing came"), message(b"late")))
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="'pull' with ps:1: nothing came"):
            exchange.recv(60.0)
