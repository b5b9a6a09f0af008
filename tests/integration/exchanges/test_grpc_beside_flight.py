"""grpcio and Flight work in one process, in either order of import."""

from __future__ import annotations

import pytest

from tests.programs import said_by

SOAK = """
import contextlib, sys
if sys.argv[1] == "grpc_first":
    import grpc
import pyarrow.flight
import grpc
from concurrent.futures import ThreadPoolExecutor
from dataservice.runtime.exchanges.flight import FlightClient, FlightServer

def echo(_command, channel):
    while (message := channel.recv()) is not None:
        channel.send(message.header, message.body)

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

flight = FlightServer("127.0.0.1", 0, token="t", exchanges={"echo": echo}).start()
rpc = grpc.server(ThreadPoolExecutor(8), handlers=(Echo(),))
port = rpc.add_insecure_port("127.0.0.1:0")
rpc.start()

def converse(seed):
    client = FlightClient(flight.address, token="t")
    with contextlib.closing(client), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/soak/Echo")
        with client.exchange({"exchange": "echo"}) as exchange:
            for index in range(100):
                text = b"%d-%d" % (seed, index)
                assert call(text, timeout=60) == text
                exchange.send(text, text * 1000)
                reply = exchange.recv(60.0)
                assert reply.header == text and reply.body.to_pybytes() == text * 1000

with ThreadPoolExecutor(4) as pool:
    list(pool.map(converse, range(4)))
rpc.stop(0.5).wait(5)
flight.stop()
print("survived")
"""


@pytest.mark.parametrize("order", ["grpc_first", "flight_first"])
def test_grpcio_and_flight_share_a_process(order: str) -> None:
    assert said_by(SOAK, order) == "survived\n"
