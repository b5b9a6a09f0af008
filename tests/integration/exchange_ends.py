"""Servers and clients of exchanges over Flight and over sockets, and the exchanges they serve.

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
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dataservice.errors import UserFunctionError
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchange import Exchange
from dataservice.runtime.flight import FlightClient, FlightServer
from dataservice.runtime.socket_client import SocketClient
from dataservice.runtime.socket_server import SocketServer
from dataservice.runtime.transport import AnyChannel

TOKEN = "secret-of-the-test"
TIMEOUT_S = 60.0
AT_MOST_S = 30.0


@dataclasses.dataclass(frozen=True)
class Ends:
    """A transport's server class and client class."""

    name: str
    server: type[FlightServer | SocketServer]
    client: type[FlightClient | SocketClient]

    def serve(self, port: int = 0, tls: TlsConfig | None = None) -> Any:
        return self.server(
            "127.0.0.1", port, token=TOKEN, tls=tls, exchanges=EXCHANGES, actions=ACTIONS
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


ENDS = {
    ends.name: ends
    for ends in (
        Ends("flight", FlightServer, FlightClient),
        Ends("sockets", SocketServer, SocketClient),
    )
}


def echo(_command: dict[str, Any], channel: AnyChannel) -> None:
    while (message := channel.recv()) is not None:
        channel.send(message.header, message.body)


def count(command: dict[str, Any], channel: AnyChannel) -> None:
    body = pa.py_buffer(b"x" * command.get("size", 0))
    for index in range(command["n"]):
        channel.send(str(index).encode(), body)


def fail(command: dict[str, Any], channel: AnyChannel) -> None:
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


def stubborn(_command: dict[str, Any], _channel: AnyChannel) -> None:
    RELEASE_STUBBORN.wait(TIMEOUT_S)


def wait_until_cancelled(_command: dict[str, Any], channel: AnyChannel) -> None:
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


def send_many(exchange: Exchange, size: int, *, timeout_s: float) -> None:
    for _ in range(1000):
        exchange.send(b"data", b"x" * size, timeout_s=timeout_s)


def serve(name: str) -> None:
    running = ENDS[name].serve()
    print(running.address, flush=True)
    sys.stdin.read()
    running.stop()


def hold(name: str, address: str) -> None:
    client = ENDS[name].client(address, token=TOKEN)
    exchange = client.exchange({"exchange": "count", "n": 10**9, "size": 1000})
    exchange.recv(TIMEOUT_S)
    print("open", flush=True)
    exchange.recv(600.0)
    time.sleep(600.0)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "serve" else hold(*sys.argv[2:])
