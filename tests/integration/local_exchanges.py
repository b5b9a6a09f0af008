"""Exchanges that a test's shared-memory server offers, and how to open them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.errors import UserFunctionError
from dataservice.runtime.connection_exchange import ConnectionExchange
from dataservice.runtime.connection_server import ConnectionChannel
from dataservice.runtime.local_address import dial
from dataservice.runtime.local_connection import LocalConnection

TOKEN = "secret-of-the-test"
MIB = 1 << 20
TIMEOUT_S = 60.0
AT_MOST_S = 30.0


def echo(_command: dict[str, Any], channel: ConnectionChannel) -> None:
    while (message := channel.recv()) is not None:
        channel.send(message.header, message.body)


def count(command: dict[str, Any], channel: ConnectionChannel) -> None:
    for index in range(command["n"]):
        body = np.full(command["size"], index % 251, np.uint8).tobytes()
        channel.send(str(index).encode(), body)


def fail(command: dict[str, Any], channel: ConnectionChannel) -> None:
    if command.get("after_message"):
        channel.recv()
    if command["how"] == "user":
        raise UserFunctionError("map failed", user_traceback="x" * 100_000, source="part-7")
    raise ZeroDivisionError("division by nothing")


def wait_until_cancelled(_command: dict[str, Any], channel: ConnectionChannel) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while not channel.cancelled():
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.005)
    SEEN_CANCELLED.set()


class LargeBody:
    """A body that writes itself into a segment; weak references show whether it still exists."""

    room = MIB

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        return 0, target.size


def send_until_gone(_command: dict[str, Any], channel: ConnectionChannel) -> None:
    while True:
        body = LargeBody()
        SENT_BODIES.append(weakref.ref(body))
        channel.send(b"h", body)


SEEN_CANCELLED = threading.Event()
SENT_BODIES: list[weakref.ref[LargeBody]] = []
EXCHANGES = {
    "echo": echo,
    "count": count,
    "fail": fail,
    "wait": wait_until_cancelled,
    "endless": send_until_gone,
}


def new_address() -> str:
    return f"test-{os.getpid()}-{time.monotonic_ns()}:1"


def open_to(address: str, name: str, *, token: str = TOKEN, **command: Any) -> ConnectionExchange:
    asked = {"exchange": name, **command}
    connection = LocalConnection(dial(address))
    return ConnectionExchange(connection, address, asked, token=token, timeout_s=TIMEOUT_S)
