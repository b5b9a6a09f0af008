"""Servers and clients of exchanges over each transport, and the exchanges they serve.

Run as a script, this file is a peer process: `serve` answers until killed, `hold` keeps an
exchange open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from dataservice.errors import UserFunctionError
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges import in_process
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.flight import FlightClient, FlightServer
from dataservice.runtime.exchanges.in_process import InProcessServer
from dataservice.runtime.exchanges.local_address import dial
from dataservice.runtime.exchanges.local_connection import LocalConnection
from dataservice.runtime.exchanges.local_server import LocalServer
from dataservice.runtime.exchanges.shared_memory import is_supported
from dataservice.runtime.exchanges.socket_client import SocketClient
from dataservice.runtime.exchanges.socket_server import SocketServer
from dataservice.runtime.exchanges.transport import AnyExchange

TOKEN = "secret-of-the-test"
TIMEOUT_S = 60.0
AT_MOST_S = 30.0
MIB = 1 << 20


def echo(_command: dict[str, Any], channel: Any) -> None:
    while (message := channel.recv()) is not None:
        channel.send(message.header, message.body if message.handed is None else message.handed)


def count(command: dict[str, Any], channel: Any) -> None:
    for index in range(command["n"]):
        body = bytes([index % 251]) * command.get("size", 0)
        channel.send(str(index).encode(), pa.py_buffer(body))


def fail(command: dict[str, Any], channel: Any) -> None:
    if command.get("after_message"):
        channel.recv()
    if command["how"] == "user":
        raise UserFunctionError(
            "map function failed",
            user_traceback='File "features.py", line 3\n' + "x" * 100_000,
            source="part-7.parquet rows 10-20",
            worker="w1",
        )
    raise ZeroDivisionError("division by nothing")


def stubborn(_command: dict[str, Any], _channel: Any) -> None:
    RELEASE_STUBBORN.wait(TIMEOUT_S)


def wait_until_cancelled(_command: dict[str, Any], channel: Any) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while not channel.cancelled():
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.005)
    SEEN_CANCELLED.set()


RELEASE_STUBBORN = threading.Event()
SEEN_CANCELLED = threading.Event()
EXCHANGES = {
    "echo": echo,
    "count": count,
    "fail": fail,
    "stubborn": stubborn,
    "wait": wait_until_cancelled,
}
ACTIONS: dict[str, Callable[[bytes], bytes]] = {
    "reverse": lambda body: body[::-1],
    "missing": lambda body: {}[body],  # type: ignore[index]
    "sleep": lambda body: time.sleep(float(body)) or b"",  # type: ignore[func-returns-value]
}


@dataclasses.dataclass(frozen=True)
class NetworkEnds:
    """A transport between hosts: how to serve, and how to reach what is served."""

    name: str
    server: type[FlightServer | SocketServer]
    client: type[FlightClient | SocketClient]

    def serve(
        self,
        exchanges: Mapping[str, Any] = EXCHANGES,
        *,
        at: Any = None,
        tls: TlsConfig | None = None,
    ) -> Any:
        """Starts a server; ``at`` is a stopped one whose address it gets."""
        port = 0 if at is None else at.port
        if self.server is FlightServer:
            return FlightServer(
                "127.0.0.1", port, token=TOKEN, tls=tls, exchanges=exchanges
            ).start()
        return SocketServer(
            "127.0.0.1", port, token=TOKEN, tls=tls, exchanges=exchanges, actions=ACTIONS
        ).start()

    @contextlib.contextmanager
    def connect(
        self, address: str, *, token: str = TOKEN, tls: TlsConfig | None = None
    ) -> Iterator[Any]:
        client = self.client(address, token=token, tls=tls)
        try:
            yield client
        finally:
            if isinstance(client, FlightClient):
                client.close()


def open_shared_memory(
    address: str, command: Any, *, token: str, timeout_s: float
) -> ConnectionExchange:
    connection = LocalConnection(dial(address))
    return ConnectionExchange(connection, address, command, token=token, timeout_s=timeout_s)


def open_in_process(address: str, command: Any, *, token: str, timeout_s: float) -> Any:  # noqa: ARG001
    return in_process.connect(address, command, token=token)


@dataclasses.dataclass(frozen=True)
class HostEnds:
    """A transport within this host, whose servers are found by a name."""

    name: str
    server: type[LocalServer | InProcessServer]
    open: Callable[..., AnyExchange]

    def serve(self, exchanges: Mapping[str, Any] = EXCHANGES, *, at: Any = None) -> Any:
        address = f"test-{os.getpid()}-{time.monotonic_ns()}:1" if at is None else at.address
        return self.server(address, token=TOKEN, exchanges=exchanges).start()

    @contextlib.contextmanager
    def connect(self, address: str, *, token: str = TOKEN) -> Iterator[HostClient]:
        yield HostClient(self, address, token)


@dataclasses.dataclass(frozen=True)
class HostClient:
    ends: HostEnds
    address: str
    token: str

    def exchange(self, command: dict[str, Any], *, timeout_s: float = TIMEOUT_S) -> AnyExchange:
        return self.ends.open(self.address, command, token=self.token, timeout_s=timeout_s)


Ends: TypeAlias = NetworkEnds | HostEnds
FLIGHT = NetworkEnds("flight", FlightServer, FlightClient)
SOCKETS = NetworkEnds("sockets", SocketServer, SocketClient)
SHARED_MEMORY = HostEnds("shared_memory", LocalServer, open_shared_memory)
IN_PROCESS = HostEnds("in_process", InProcessServer, open_in_process)
NETWORK = [FLIGHT, SOCKETS]
CONNECTED: list[Ends] = [*NETWORK, *([SHARED_MEMORY] if is_supported() else [])]
ENDS: dict[str, Ends] = {ends.name: ends for ends in (*CONNECTED, IN_PROCESS)}

over_network = pytest.mark.parametrize("ends", NETWORK, ids=lambda ends: ends.name)
over_sockets = pytest.mark.parametrize("ends", [SOCKETS], ids=lambda ends: ends.name)
over_connections = pytest.mark.parametrize("ends", CONNECTED, ids=lambda ends: ends.name)


@contextlib.contextmanager
def takes(at_least_s: float = 0.0) -> Iterator[None]:
    """Asserts that the block takes at least that long, and less than any time-out inside it."""
    start_s = time.monotonic()
    yield
    elapsed_s = time.monotonic() - start_s
    assert at_least_s <= elapsed_s <= AT_MOST_S, f"took {elapsed_s:.2f} s"


def freeze(process: subprocess.Popen[str]) -> None:
    """Stops a process and waits for that: threads may run on, and answer, after the signal."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def send_many(exchange: AnyExchange, size: int, *, timeout_s: float) -> None:
    for _ in range(1000):
        exchange.send(b"data", b"x" * size, timeout_s=timeout_s)


def serve(name: str) -> None:
    running = ENDS[name].serve()
    print(running.address, flush=True)
    sys.stdin.read()
    running.stop()


def hold(name: str, address: str) -> None:
    with ENDS[name].connect(address) as client:
        exchange = client.exchange({"exchange": "count", "n": 10**9, "size": 1000})
        exchange.recv(TIMEOUT_S)
        print("open", flush=True)
        exchange.recv(600.0)
        time.sleep(600.0)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else hold(*sys.argv[2:])
