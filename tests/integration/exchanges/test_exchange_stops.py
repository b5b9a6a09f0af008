"""Stopping a server: which calls it ends, which it lets finish, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from dataservice.errors import DataServiceError, UnavailableError
from tests.exchanges import answer_to
from tests.integration import exchange_ends
from tests.integration.exchange_ends import (
    AT_MOST_S,
    MIB,
    RELEASE_STUBBORN,
    TIMEOUT_S,
    Ends,
    echo,
    freeze,
    over_connections,
    takes,
)
from tests.programs import said_by


def test_stop_ends_open_exchanges_and_frees_the_address(ends: Ends, server: Any) -> None:
    with ends.connect(server.address) as client:
        exchanges = [client.exchange({"exchange": "echo"}) for _ in range(5)]
        sending = client.exchange({"exchange": "count", "n": 1_000, "size": MIB})
        failures: list[BaseException] = []

        def wait_for_message(index: int) -> None:
            try:
                exchanges[index].recv(TIMEOUT_S)
            except DataServiceError as error:
                failures.append(error)

        readers = [threading.Thread(target=wait_for_message, args=(i,)) for i in range(4)]
        for reader in readers:
            reader.start()
        with takes():
            server.stop()
        for reader in readers:
            reader.join(TIMEOUT_S)
        assert [type(error) for error in failures] == [UnavailableError] * 4
        with pytest.raises(UnavailableError):
            answer_to(exchanges[4], b"x", timeout_s=TIMEOUT_S)
        with pytest.raises(UnavailableError):
            list(iter(lambda: sending.recv(TIMEOUT_S), None))
        for exchange in (*exchanges, sending):
            exchange.close()
    ends.serve(at=server).stop()
    server.stop()


@over_connections
def test_stop_is_not_held_up_by_frozen_client(ends: Ends, server: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, exchange_ends.__file__, "hold", ends.name, server.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        freeze(process)
        with takes():
            server.stop()
        ends.serve(at=server).stop()
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()  # type: ignore[union-attr]


@over_connections
def test_stop_lets_busy_handler_finish_within_grace(ends: Ends) -> None:
    entered = threading.Event()

    def slow(_command: dict[str, Any], channel: Any) -> None:
        entered.set()
        time.sleep(0.2)
        channel.send(b"done")

    server = ends.serve({"slow": slow})
    with ends.connect(server.address) as client:
        exchange = client.exchange({"exchange": "slow"})
        assert entered.wait(TIMEOUT_S)
        stopper = threading.Thread(target=server.stop, args=(TIMEOUT_S,))
        stopper.start()
        message = exchange.recv(TIMEOUT_S)
        assert message is not None
        assert message.header == b"done"
        # Else the server waits for two seconds, so that the client can receive the end.
        exchange.close()
        stopper.join(TIMEOUT_S)
        assert not stopper.is_alive()


def test_stop_gives_up_on_handler_that_ignores_it(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    RELEASE_STUBBORN.clear()
    server = ends.serve()
    with ends.connect(server.address) as client:
        exchange = client.exchange({"exchange": "stubborn"})
        try:
            with takes(0.3):
                server.stop(grace_s=0.1, timeout_s=0.5)
        finally:
            RELEASE_STUBBORN.set()
        assert "1 exchanges" in caplog.text
        with pytest.raises(UnavailableError):
            exchange.recv(TIMEOUT_S)
        exchange.close()


@over_connections
def test_abort_ends_exchange_of_one_client_only(ends: Ends) -> None:
    channels: list[Any] = []

    def register(_command: dict[str, Any], channel: Any) -> None:
        channels.append(channel)
        echo({}, channel)

    other = ends.serve({"register": register})
    with ends.connect(other.address) as first, ends.connect(other.address) as second:
        cut = first.exchange({"exchange": "register"})
        answer_to(cut, b"x", timeout_s=TIMEOUT_S)
        with cut, second.exchange({"exchange": "register"}) as kept:
            channels[0].abort()
            with takes(), pytest.raises(UnavailableError):
                cut.recv(TIMEOUT_S)
            assert answer_to(kept, b"y", timeout_s=TIMEOUT_S).header == b"y"
    other.stop()


def test_stop_is_not_held_up_by_idle_clients(ends: Ends) -> None:
    server = ends.serve()
    with ends.connect(server.address) as client, client.exchange({"exchange": "echo"}) as exchange:
        answer_to(exchange, b"x", timeout_s=TIMEOUT_S)
        with takes():
            server.stop(grace_s=2 * AT_MOST_S, timeout_s=3 * AT_MOST_S)


FORKED = """
import os, signal, socket
from dataservice.runtime.exchanges.socket_server import SocketServer

server = SocketServer("127.0.0.1", 0, token="t", exchanges={}).start()
child = os.fork()
if not child:
    signal.pause()
try:
    server.stop()
    try:
        socket.create_connection(("127.0.0.1", server.port), 60.0)
    except ConnectionRefusedError:
        SocketServer("127.0.0.1", server.port, token="t", exchanges={}).start().stop()
        print("free")
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_port_is_free_after_stop_although_forked_child_lives() -> None:
    assert said_by(FORKED) == "free\n"
