"""The choice between shared memory and Flight, by the peer's host and the protocol asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dataservice.runtime.flight import FlightServer
from dataservice.runtime.local_server import LocalServer
from dataservice.runtime.shared_memory import is_supported
from dataservice.runtime.transport import open_exchange
from tests.exchanges import answer_to
from tests.integration.local_exchanges import EXCHANGES, TIMEOUT_S, TOKEN, new_address

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    running = LocalServer(new_address(), token=TOKEN, exchanges=EXCHANGES).start()
    yield running
    running.stop()


@pytest.fixture
def flight() -> Iterator[FlightServer]:
    def echo_once(_command: dict[str, Any], channel: Any) -> None:
        while (message := channel.recv()) is not None:
            channel.send(message.header, message.body)

    running = FlightServer("127.0.0.1", 0, token=TOKEN, exchanges={"echo": echo_once}).start()
    yield running
    running.stop()


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
    flight: FlightServer, wanted: str | None, is_local: bool, taken: str
) -> None:
    local = LocalServer(flight.address, token=TOKEN, exchanges=EXCHANGES)
    if is_local:
        local.start()
    command = {"exchange": "echo"}
    with open_exchange(
        flight.address, command, protocol=wanted, token=TOKEN, tls=None, timeout_s=TIMEOUT_S
    ) as exchange:
        assert exchange.protocol == taken
        assert answer_to(exchange, b"h", bytes(100_000), timeout_s=TIMEOUT_S).body == bytes(100_000)
    local.stop()


def test_shared_memory_asked_of_a_peer_without_it_is_refused(flight: FlightServer) -> None:
    def ask() -> None:
        with open_exchange(
            flight.address,
            {"exchange": "echo"},
            protocol="shared_memory",
            token=TOKEN,
            tls=None,
            timeout_s=TIMEOUT_S,
        ):
            pass

    with pytest.raises(FailedPreconditionError, match=flight.address):
        ask()
    flight.stop()
    with pytest.raises(UnavailableError):
        ask()


def test_unknown_protocol_is_refused() -> None:
    asked = json.loads('{"exchange": "echo"}')
    with (
        pytest.raises(InvalidArgumentError, match="pigeon"),
        open_exchange("h:1", asked, protocol="pigeon", token="", tls=None, timeout_s=1),
    ):
        pass
