"""Large bodies arrive aligned over Flight, so that they need no copy, with any header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dataservice.runtime.exchanges.flight_exchange import FlightExchange
from tests.exchanges import answer_to
from tests.integration.exchange_ends import FLIGHT


def echo_position(_command: dict[str, Any], channel: Any) -> None:
    while (message := channel.recv()) is not None:
        # The reply's first byte is the request body's address modulo 16.
        position = bytes([message.body.address % 16])
        channel.send(position + message.header, message.body)


@pytest.fixture
def exchange() -> Iterator[FlightExchange]:
    server = FLIGHT.serve({"echo": echo_position})
    with (
        FLIGHT.connect(server.address) as client,
        client.exchange({"exchange": "echo"}) as exchange,
    ):
        yield exchange
    server.stop()


# Sizes around those at which protobuf's length fields grow by a byte.
@pytest.mark.parametrize("size_bytes", [200_000, (1 << 21) - 30, (1 << 21) - 10, 4_000_001])
def test_large_bodies_are_aligned_on_both_sides(exchange: FlightExchange, size_bytes: int) -> None:
    body = pa.py_buffer(bytes(size_bytes))
    for header_bytes in [*range(0, 40, 3), *range(108, 132), 16_370, 16_384]:
        header = b"h" * header_bytes
        reply = answer_to(exchange, header, body, timeout_s=10.0)
        assert reply.header[1:] == header
        assert reply.body is not None
        assert reply.body.size == size_bytes
        assert (reply.header[0], reply.body.address % 16) == (0, 0)
