"""Exchanges through shared memory: messages, the return of segments, and refused clients."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.runtime import connection_server, local_address, local_server
from dataservice.runtime.connection_exchange import ConnectionExchange
from dataservice.runtime.local_address import NotLocalError, dial, socket_name
from dataservice.runtime.local_connection import LocalConnection
from dataservice.runtime.local_server import LocalServer
from dataservice.runtime.segment_pool import HELD_BYTES, POOL_BYTES
from dataservice.runtime.shared_memory import is_supported
from tests.exchanges import answer_to
from tests.integration.local_exchanges import (
    AT_MOST_S,
    EXCHANGES,
    MIB,
    SEEN_CANCELLED,
    SENT_BODIES,
    TIMEOUT_S,
    TOKEN,
    new_address,
    open_to,
)

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    running = LocalServer(new_address(), token=TOKEN, exchanges=EXCHANGES).start()
    yield running
    running.stop()


def send_for(
    seconds: float, exchange: ConnectionExchange, body: bytes, timeout_s: float = TIMEOUT_S
) -> None:
    give_up_s = time.monotonic() + seconds
    while time.monotonic() < give_up_s:
        exchange.send(b"h", body, timeout_s=timeout_s)


def receive_for(seconds: float, exchange: ConnectionExchange) -> None:
    give_up_s = time.monotonic() + seconds
    while time.monotonic() < give_up_s:
        exchange.recv(TIMEOUT_S)


HEADERS = b"h", b"", bytes(20_000), bytes(3 * MIB)
SIZES = None, 0, 1, 100, 16_384, 20_000, 700_000


@pytest.mark.parametrize(
    ("header", "size"), [(h, s) for h in HEADERS for s in SIZES if h or s is not None]
)
def test_messages_come_back_unchanged(server: LocalServer, header: bytes, size: int | None) -> None:
    body = None if size is None else np.random.default_rng(1).bytes(size)
    with open_to(server.address, "echo") as exchange:
        for _ in range(3):
            answer = answer_to(exchange, header, body, timeout_s=TIMEOUT_S)
            assert answer.header == header
            assert (answer.body is None) == (body is None)
            assert body is None or answer.body == pa.py_buffer(body)


def test_body_larger_than_the_pool_comes_back_unchanged(server: LocalServer) -> None:
    body = np.random.default_rng(1).bytes(POOL_BYTES + MIB)
    with open_to(server.address, "echo") as exchange:
        for _ in range(2):
            answer = answer_to(exchange, b"large", body, timeout_s=TIMEOUT_S)
            assert answer.body == pa.py_buffer(body)


def test_receiver_that_keeps_all_bodies_gets_them_all(server: LocalServer) -> None:
    """Bodies beyond what may be lent are copied, so that the sender is never starved."""
    size, n = MIB, 2 * POOL_BYTES // MIB
    with open_to(server.address, "count", n=n, size=size) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange._connection._peer_segments.held_bytes <= HELD_BYTES
    # The bodies stay valid after both ends of the connection are closed.
    server.stop()
    for index, message in enumerate(kept):
        assert message is not None
        assert message.body is not None
        assert np.frombuffer(message.body, np.uint8).min() == index % 251
        assert np.frombuffer(message.body, np.uint8).max() == index % 251


def test_released_segments_are_reused(server: LocalServer) -> None:
    with open_to(server.address, "echo") as exchange:
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


def test_many_kept_small_messages_all_arrive(server: LocalServer) -> None:
    n = 3_000
    with open_to(server.address, "count", n=n, size=20_000) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
    assert [int(message.header) for message in kept if message] == list(range(n))


def test_concurrent_exchanges_and_threads_get_their_own_replies(server: LocalServer) -> None:
    def converse(number: int) -> int:
        turns = threading.Lock()
        with open_to(server.address, "echo") as exchange, ThreadPoolExecutor(4) as pool:

            def ask(index: int) -> bool:
                body = np.full(50_000 + index, number, np.uint8).tobytes()
                with turns:
                    answer = answer_to(exchange, str(index).encode(), body, timeout_s=TIMEOUT_S)
                return answer.header == str(index).encode() and answer.body == pa.py_buffer(body)

            return sum(pool.map(ask, range(50)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(converse, range(4))) == [50] * 4


def test_one_thread_sends_while_another_receives(server: LocalServer) -> None:
    n, body = 500, bytes(200_000)
    with open_to(server.address, "echo") as exchange:

        def push() -> None:
            for index in range(n):
                exchange.send(str(index).encode(), body, timeout_s=TIMEOUT_S)
            exchange.done_writing()

        sending = threading.Thread(target=push)
        sending.start()
        headers = []
        while (message := exchange.recv(TIMEOUT_S)) is not None:
            headers.append(int(message.header))
        sending.join(TIMEOUT_S)
    assert headers == list(range(n))


@pytest.mark.parametrize("attempt", range(5))
def test_messages_of_server_that_ends_at_once_all_arrive(server: LocalServer, attempt: int) -> None:
    with open_to(server.address, "count", n=20, size=100_000) as exchange:
        exchange.send(b"unread", bytes(attempt))
        assert sum(exchange.recv(TIMEOUT_S) is not None for _ in range(20)) == 20
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange.recv(TIMEOUT_S) is None


def test_wrong_token_is_refused(server: LocalServer) -> None:
    with pytest.raises(UnauthenticatedError, match="token"):
        open_to(server.address, "echo", token="guess")


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


def test_address_in_use_is_refused(server: LocalServer) -> None:
    with pytest.raises(NotLocalError, match="announces"):
        LocalServer(server.address, token=TOKEN, exchanges=EXCHANGES).start()


def test_platform_without_memfd_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert not is_supported()
    with pytest.raises(NotLocalError, match="memfd"):
        dial("127.0.0.1:1")
    with pytest.raises(NotLocalError, match="memfd"):
        LocalServer("127.0.0.1:1", token=TOKEN, exchanges={}).start()


def test_unknown_exchange_and_handler_errors_are_raised(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFoundError, match="'count', 'echo'"), open_to(server.address, "x") as x:
        x.recv(TIMEOUT_S)
    with open_to(server.address, "fail", how="user") as exchange:
        with pytest.raises(UserFunctionError) as caught:
            exchange.recv(TIMEOUT_S)
        assert caught.value.user_traceback == "x" * 100_000
        with pytest.raises(UserFunctionError):
            exchange.send(b"more")
    failing = open_to(server.address, "fail", how="other")
    with failing, pytest.raises(InternalError, match="division by nothing"):
        failing.recv(TIMEOUT_S)
    assert "division by nothing" in caplog.text


def test_sending_to_failed_handler_raises_its_error(server: LocalServer) -> None:
    failing = open_to(server.address, "fail", how="user", after_message=True)
    with failing, pytest.raises(UserFunctionError):
        send_for(TIMEOUT_S, failing, bytes(30_000))


def test_message_without_header_and_body_is_refused(server: LocalServer) -> None:
    with open_to(server.address, "echo") as exchange:
        with pytest.raises(InvalidArgumentError, match="neither"):
            exchange.send(b"")
        assert answer_to(exchange, b"still open", timeout_s=TIMEOUT_S).header == b"still open"


def test_recv_timeout_ends_the_exchange(server: LocalServer) -> None:
    with open_to(server.address, "echo") as exchange:
        began_s = time.monotonic()
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                exchange.recv(0.2)
        assert 0.15 < time.monotonic() - began_s < AT_MOST_S


def test_send_times_out_when_peer_does_not_read(server: LocalServer) -> None:
    SEEN_CANCELLED.clear()
    with open_to(server.address, "wait") as exchange, pytest.raises(DeadlineExceededError):
        send_for(TIMEOUT_S, exchange, bytes(MIB), timeout_s=0.3)
    assert SEEN_CANCELLED.wait(TIMEOUT_S)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_ending_from_another_thread_unblocks_recv(server: LocalServer, end: str) -> None:
    exchange = open_to(server.address, "echo")
    ending = threading.Timer(0.2, getattr(exchange, end))
    ending.start()
    began_s = time.monotonic()
    with pytest.raises(CancelledError):
        exchange.recv(TIMEOUT_S)
    assert time.monotonic() - began_s < AT_MOST_S
    ending.join(TIMEOUT_S)
    exchange.close()


def test_unsent_bodies_are_freed_after_the_error(server: LocalServer) -> None:
    gc.disable()
    try:
        with open_to(server.address, "endless") as exchange:
            exchange.recv(TIMEOUT_S)
        give_up_s = time.monotonic() + AT_MOST_S
        while any(body() is not None for body in SENT_BODIES):
            assert time.monotonic() < give_up_s
            time.sleep(0.005)
    finally:
        gc.enable()
        SENT_BODIES.clear()


def test_stop_ends_open_exchanges(server: LocalServer) -> None:
    exchanges = [open_to(server.address, "echo") for _ in range(5)]
    began_s = time.monotonic()
    server.stop()
    assert time.monotonic() - began_s < AT_MOST_S
    for exchange in exchanges:
        with pytest.raises(DataServiceError):
            exchange.recv(TIMEOUT_S)
        exchange.close()


def test_stop_does_not_wait_for_the_listeners_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_server, "_RECHECK_S", 2 * AT_MOST_S)
    server = LocalServer(new_address(), token=TOKEN, exchanges=EXCHANGES).start()
    open_to(server.address, "echo").close()
    began_s = time.monotonic()
    server.stop(timeout_s=AT_MOST_S)
    assert time.monotonic() - began_s < AT_MOST_S


def test_many_exchanges_leak_no_file_descriptors_or_threads(server: LocalServer) -> None:
    def left() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    open_to(server.address, "echo").close()
    before = left()
    for _ in range(30):
        with open_to(server.address, "count", n=3, size=100_000) as exchange:
            assert exchange.recv(TIMEOUT_S) is not None
    give_up_s = time.monotonic() + TIMEOUT_S
    while left() > before and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert left() <= before


SERVER = """
import sys
from tests.integration.test_shared_memory import EXCHANGES, TOKEN
from dataservice.runtime.local_server import LocalServer
LocalServer(sys.argv[1], token=TOKEN, exchanges=EXCHANGES).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def peer() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a server process and its address."""
    address = new_address()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, address],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, address
        process.kill()


def test_killed_peer_is_unavailable_at_once_and_received_bodies_stay_valid(
    peer: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = peer
    with open_to(address, "count", n=10**6, size=MIB) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(10)]
        process.kill()
        began_s = time.monotonic()
        with pytest.raises(UnavailableError):
            receive_for(TIMEOUT_S, exchange)
        assert time.monotonic() - began_s < AT_MOST_S
    values = [np.frombuffer(m.body, np.uint8)[-1] for m in kept if m and m.body is not None]
    assert values == list(range(10))


def test_calls_to_frozen_peer_end_at_their_deadline(
    peer: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = peer
    with open_to(address, "echo") as exchange:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        try:
            with pytest.raises(DeadlineExceededError):
                answer_to(exchange, b"h", timeout_s=0.3)
            with pytest.raises(DeadlineExceededError):
                ConnectionExchange(
                    LocalConnection(dial(address)),
                    address,
                    {"exchange": "echo"},
                    token=TOKEN,
                    timeout_s=0.3,
                )
        finally:
            process.send_signal(signal.SIGCONT)
