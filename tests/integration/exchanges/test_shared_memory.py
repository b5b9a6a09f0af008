"""Exchanges through shared memory: who is served, and the return of segments."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.errors import UnavailableError
from dataservice.runtime.exchanges import connection_server, local_address, local_server
from dataservice.runtime.exchanges.connection_channel import ConnectionChannel
from dataservice.runtime.exchanges.local_address import NotLocalError, dial, socket_name
from dataservice.runtime.exchanges.local_server import LocalServer
from dataservice.runtime.exchanges.segment_pool import HELD_BYTES, POOL_BYTES
from dataservice.runtime.exchanges.shared_memory import is_supported
from tests.exchanges import answer_to
from tests.integration.exchange_ends import (
    AT_MOST_S,
    MIB,
    SHARED_MEMORY,
    TIMEOUT_S,
    TOKEN,
    Ends,
    takes,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")


@pytest.fixture
def ends() -> Ends:
    return SHARED_MEMORY


def test_receiver_that_keeps_all_bodies_gets_them_all(server: LocalServer, client: Any) -> None:
    """Bodies beyond what may be lent are copied, so that the sender is never starved."""
    n = 2 * POOL_BYTES // MIB
    with client.exchange({"exchange": "count", "n": n, "size": MIB}) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange._connection._peer_segments.held_bytes <= HELD_BYTES
    # The bodies stay valid after both ends of the connection are closed.
    server.stop()
    for index, message in enumerate(kept):
        body = np.frombuffer(message.body, np.uint8)
        assert body.min() == body.max() == index % 251


def test_released_segments_are_reused(client: Any) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:
        body = bytes(MIB)
        for _ in range(100):
            view = np.frombuffer(
                answer_to(exchange, b"h", body, timeout_s=TIMEOUT_S).body, np.uint8
            )[5:]
            assert not view.any()
        del view
        gc.collect()
        answer_to(exchange, b"last", timeout_s=TIMEOUT_S)
        assert exchange._connection._peer_segments.held_bytes == 0
        assert exchange._connection._pool.total_bytes <= 4 * MIB


def test_many_kept_small_messages_all_arrive(client: Any) -> None:
    n = 3_000
    with client.exchange({"exchange": "count", "n": n, "size": 20_000}) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
    assert [int(message.header) for message in kept] == list(range(n))


@pytest.mark.parametrize("attempt", range(5))
def test_messages_of_server_that_read_nothing_all_arrive(client: Any, attempt: int) -> None:
    with client.exchange({"exchange": "count", "n": 20, "size": 100_000}) as exchange:
        exchange.send(b"unread", bytes(attempt))
        assert sum(exchange.recv(TIMEOUT_S) is not None for _ in range(20)) == 20
        assert exchange.recv(TIMEOUT_S) is None


def test_client_of_another_protocol_is_disconnected(server: LocalServer) -> None:
    sock = dial(server.address)
    with sock:
        sock.setblocking(True)
        sock.settimeout(TIMEOUT_S)
        sock.send(b"GET / HTTP/1.1")
        assert sock.recv(1_000) == b""


def test_peer_of_another_user_is_refused_on_both_sides(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (local_address, local_server):
        monkeypatch.setattr(module, "peer_uid", lambda _sock: os.getuid() + 1)
    with pytest.raises(NotLocalError, match=f"user {os.getuid() + 1}"):
        dial(server.address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(socket_name(server.address))
        assert sock.recv(10) == b""


def test_dialling_a_stopped_server_is_not_local(server: LocalServer) -> None:
    server.stop()
    with pytest.raises(NotLocalError, match="no server"):
        dial(server.address)


def test_address_in_use_is_refused(ends: Ends, server: LocalServer) -> None:
    with pytest.raises(NotLocalError, match="announces"):
        ends.serve(at=server)


def test_platform_without_memfd_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert not is_supported()
    with pytest.raises(NotLocalError, match="memfd"):
        dial("127.0.0.1:1")
    with pytest.raises(NotLocalError, match="memfd"):
        LocalServer("127.0.0.1:1", token=TOKEN, exchanges={}).start()


class LargeBody:
    """A body that writes itself into a segment; weak references show whether it still exists."""

    room = MIB

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        return 0, target.size


def test_unsent_bodies_are_freed_after_the_error(ends: Ends) -> None:
    sent: list[weakref.ref[LargeBody]] = []

    def send_until_gone(_command: dict[str, Any], channel: ConnectionChannel) -> None:
        while True:
            body = LargeBody()
            sent.append(weakref.ref(body))
            channel.send(b"h", body)

    server = ends.serve({"endless": send_until_gone})
    gc.disable()
    try:
        with (
            ends.connect(server.address) as client,
            client.exchange({"exchange": "endless"}) as exchange,
        ):
            exchange.recv(TIMEOUT_S)
        wait_until(lambda: not any(body() for body in sent), "freeing all bodies", AT_MOST_S)
    finally:
        gc.enable()
        server.stop()


def test_stop_does_not_wait_for_the_listeners_next_check(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_server, "_RECHECK_S", 2 * AT_MOST_S)
    server = ends.serve()
    with ends.connect(server.address) as client:
        client.exchange({"exchange": "echo"}).close()
    with takes():
        server.stop(timeout_s=AT_MOST_S)


def test_many_exchanges_leak_no_file_descriptors_or_threads(client: Any) -> None:
    def left() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    client.exchange({"exchange": "echo"}).close()
    before = left()
    for _ in range(30):
        with client.exchange({"exchange": "count", "n": 3, "size": 100_000}) as exchange:
            assert exchange.recv(TIMEOUT_S) is not None
    wait_until(lambda: left() <= before, "closing all that was opened", TIMEOUT_S)


def test_bodies_of_killed_peer_stay_valid(
    ends: Ends, peer: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = peer
    with (
        ends.connect(address) as client,
        client.exchange({"exchange": "count", "n": 10**6, "size": MIB}) as exchange,
    ):
        kept = [exchange.recv(TIMEOUT_S) for _ in range(10)]
        process.kill()
        with takes(), pytest.raises(UnavailableError):
            list(iter(lambda: exchange.recv(TIMEOUT_S), None))
    assert [np.frombuffer(message.body, np.uint8)[-1] for message in kept] == list(range(10))
