"""Large bodies arrive aligned, so that they need no copy; any header arrives unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dataservice.runtime.exchange import Exchange
from dataservice.runtime.flight import FlightClient, FlightServer
from tests.exchanges import answer_to

TOKEN = "token-of-these-tests"


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    def echo(_command: dict[str, Any], channel: Any) -> None:
        while (message := channel.recv()) is not None:
            # The reply's first byte is the request body's address modulo 16.
            position = bytes([message.body.address % 16])
            channel.send(position + message.header, message.body)

    server = FlightServer("127.0.0.1", 0, token=TOKEN, exchanges={"echo": echo})
    server.start()
    client = FlightClient(server.address, token=TOKEN)
    with client.exchange({"exchange": "echo"}) as exchange:
        yield exchange
    client.close()
    server.stop()


# Sizes around those at which protobuf's length fields grow by a byte.
@pytest.mark.parametrize("size_bytes", [200_000, (1 << 21) - 30, (1 << 21) - 10, 4_000_001])
def test_large_bodies_are_aligned_on_both_sides(exchange: Exchange, size_bytes: int) -> None:
    body = pa.py_buffer(bytes(size_bytes))
    for header_bytes in [*range(0, 40, 3), *range(108, 132), 16_370, 16_384]:
        header = b"h" * header_bytes
        reply = answer_to(exchange, header, body, timeout_s=10.0)
        assert reply.header[1:] == header
        assert reply.body is not None
        assert reply.body.size == size_bytes
        assert (reply.header[0], reply.body.address % 16) == (0, 0)


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 127, 20_000])
def test_small_bodies_arrive_unchanged(exchange: Exchange, size_bytes: int) -> None:
    body = bytes(range(256)) * 100
    reply = answer_to(exchange, b"", body[:size_bytes], timeout_s=10.0)
    assert reply.body is not None
    assert reply.body.to_pybytes() == body[:size_bytes]
