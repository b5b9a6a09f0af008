"""The choice between shared memory and Flight, by the peer's host and the protocol asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dataservice.runtime.exchanges.flight import FlightServer
from dataservice.runtime.exchanges.shared_memory import is_supported
from dataservice.runtime.exchanges.transport import AnyExchange, open_exchange
from tests.exchanges import answer_to
from tests.integration.exchange_ends import FLIGHT, SHARED_MEMORY, TIMEOUT_S, TOKEN, Ends

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")


@pytest.fixture
def ends() -> Ends:
    return FLIGHT


def open_echo(address: str, protocol: str | None) -> AbstractContextManager[AnyExchange]:
    command = {"exchange": "echo"}
    return open_exchange(
        address, command, protocol=protocol, token=TOKEN, tls=None, timeout_s=TIMEOUT_S
    )


@pytest.mark.parametrize(
    ("wanted", "is_local", "taken"),
    [
        (None, True, "shared_memory"),
        (None, False, "flight"),
        ("shared_memory", True, "shared_memory"),
        ("flight", True, "flight"),
        ("grpc", True, "flight"),
    ],
)
def test_transport_follows_protocol_asked_for_and_host_of_peer(
    server: FlightServer, wanted: str | None, is_local: bool, taken: str
) -> None:
    local = SHARED_MEMORY.serve(at=server) if is_local else None
    with open_echo(server.address, wanted) as exchange:
        assert exchange.protocol == taken
        assert answer_to(exchange, b"h", bytes(100_000), timeout_s=TIMEOUT_S).body == bytes(100_000)
    if local is not None:
        local.stop()


def test_shared_memory_asked_of_a_peer_without_it_is_refused(server: FlightServer) -> None:
    with (
        pytest.raises(FailedPreconditionError, match=server.address),
        open_echo(server.address, "shared_memory"),
    ):
        pass
    server.stop()
    with pytest.raises(UnavailableError), open_echo(server.address, "shared_memory"):
        pass


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="pigeon"), open_echo("h:1", "pigeon"):
        pass
