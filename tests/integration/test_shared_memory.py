"""Exchanges through shared memory: what arrives, what is given back, and who is refused."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.runtime import (
    connection_server,
    local_address,
    local_server,
    packet_socket,
    shared_memory,
)
from dataservice.runtime.connection_exchange import ConnectionExchange
from dataservice.runtime.connection_server import ConnectionChannel
from dataservice.runtime.flight import FlightServer
from dataservice.runtime.local_address import NotLocalError, dial, socket_name
from dataservice.runtime.local_connection import LocalConnection
from dataservice.runtime.local_server import LocalServer
from dataservice.runtime.message import Kind
from dataservice.runtime.segment_pool import HELD_BYTES, POOL_BYTES
from dataservice.runtime.shared_memory import OwnSegment, PeerSegment, is_supported
from dataservice.runtime.transport import open_exchange
from tests.exchanges import answer_to

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")

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
    """Writes itself; whether it is still there can be told."""

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


@pytest.fixture
def server() -> Iterator[LocalServer]:
    running = LocalServer(new_address(), token=TOKEN, exchanges=EXCHANGES).start()
    yield running
    running.stop()


def open_to(address: str, name: str, *, token: str = TOKEN, **command: Any) -> ConnectionExchange:
    asked = {"exchange": name, **command}
    connection = LocalConnection(dial(address))
    return ConnectionExchange(connection, address, asked, token=token, timeout_s=TIMEOUT_S)


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


@pytest.mark.parametrize("header", [b"h", b"", bytes(20_000), bytes(3 * MIB)])
@pytest.mark.parametrize("size", [None, 0, 1, 100, 16_384, 20_000, 700_000])
def test_messages_come_back_unchanged(server: LocalServer, header: bytes, size: int | None) -> None:
    if not header and size is None:
        return
    body = None if size is None else np.random.default_rng(1).bytes(size)
    with open_to(server.address, "echo") as exchange:
        for _ in range(3):
            answer = answer_to(exchange, header, body, timeout_s=TIMEOUT_S)
            assert answer.header == header
            assert (answer.body is None) == (body is None)
            assert body is None or answer.body == pa.py_buffer(body)


def test_a_body_larger_than_everything_that_may_be_lent(server: LocalServer) -> None:
    body = np.random.default_rng(1).bytes(POOL_BYTES + MIB)
    with open_to(server.address, "echo") as exchange:
        for _ in range(2):
            answer = answer_to(exchange, b"large", body, timeout_s=TIMEOUT_S)
            assert answer.body == pa.py_buffer(body)


def test_who_keeps_everything_gets_everything(server: LocalServer) -> None:
    """More than may be lent: the rest is copied, so that the sender is never starved."""
    size, n = MIB, 2 * POOL_BYTES // MIB
    with open_to(server.address, "count", n=n, size=size) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange._connection._holdings.held_bytes <= HELD_BYTES
    # Also after the connection is closed, and the server's side with it.
    server.stop()
    for index, message in enumerate(kept):
        assert message is not None
        assert message.body is not None
        assert np.frombuffer(message.body, np.uint8).min() == index % 251
        assert np.frombuffer(message.body, np.uint8).max() == index % 251


def test_segments_are_used_again_once_nobody_looks_at_them(server: LocalServer) -> None:
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
        assert exchange._connection._holdings.held_bytes == 0
        assert exchange._connection._pool.total_bytes <= 4 * MIB


def test_many_small_messages_that_are_kept(server: LocalServer) -> None:
    n = 3_000
    with open_to(server.address, "count", n=n, size=20_000) as exchange:
        kept = [exchange.recv(TIMEOUT_S) for _ in range(n)]
    assert [int(message.header) for message in kept if message] == list(range(n))


def test_requests_of_many_threads_and_exchanges(server: LocalServer) -> None:
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
def test_nothing_is_lost_when_the_server_ends_at_once(server: LocalServer, attempt: int) -> None:
    with open_to(server.address, "count", n=20, size=100_000) as exchange:
        exchange.send(b"unread", bytes(attempt))
        assert sum(exchange.recv(TIMEOUT_S) is not None for _ in range(20)) == 20
        assert exchange.recv(TIMEOUT_S) is None
        assert exchange.recv(TIMEOUT_S) is None


def test_a_wrong_token_is_refused(server: LocalServer) -> None:
    with pytest.raises(UnauthenticatedError, match="token"):
        open_to(server.address, "echo", token="guess")


def test_a_client_that_says_nothing_in_order_is_refused(server: LocalServer) -> None:
    sock = dial(server.address)
    with sock:
        sock.setblocking(True)
        sock.settimeout(TIMEOUT_S)
        sock.send(b"GET / HTTP/1.1")
        assert sock.recv(1_000) == b""


def test_another_user_is_refused_on_both_sides(
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


def test_where_nobody_listens(server: LocalServer) -> None:
    server.stop()
    with pytest.raises(NotLocalError, match="no server"):
        dial(server.address)


def test_an_address_is_taken_once(server: LocalServer) -> None:
    with pytest.raises(NotLocalError, match="announces"):
        LocalServer(server.address, token=TOKEN, exchanges=EXCHANGES).start()


def test_a_platform_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert not is_supported()
    with pytest.raises(NotLocalError, match="memfd"):
        dial("127.0.0.1:1")
    with pytest.raises(NotLocalError, match="memfd"):
        LocalServer("127.0.0.1:1", token=TOKEN, exchanges={}).start()


def test_unknown_names_and_errors_of_handlers(
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


def test_sending_to_a_failed_handler_raises_its_error(server: LocalServer) -> None:
    failing = open_to(server.address, "fail", how="user", after_message=True)
    with failing, pytest.raises(UserFunctionError):
        send_for(TIMEOUT_S, failing, bytes(30_000))


def test_a_message_needs_something(server: LocalServer) -> None:
    with open_to(server.address, "echo") as exchange:
        with pytest.raises(InvalidArgumentError, match="neither"):
            exchange.send(b"")
        assert answer_to(exchange, b"still open", timeout_s=TIMEOUT_S).header == b"still open"


def test_recv_ends_at_its_timeout_and_so_does_the_exchange(server: LocalServer) -> None:
    with open_to(server.address, "echo") as exchange:
        began_s = time.monotonic()
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                exchange.recv(0.2)
        assert 0.15 < time.monotonic() - began_s < AT_MOST_S


def test_send_ends_at_its_timeout_when_nobody_reads(server: LocalServer) -> None:
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


def test_what_could_not_be_sent_is_not_kept_with_the_error(server: LocalServer) -> None:
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


def test_a_stop_does_not_wait_for_the_listener_to_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_server, "_RECHECK_S", 2 * AT_MOST_S)
    server = LocalServer(new_address(), token=TOKEN, exchanges=EXCHANGES).start()
    open_to(server.address, "echo").close()
    began_s = time.monotonic()
    server.stop(timeout_s=AT_MOST_S)
    assert time.monotonic() - began_s < AT_MOST_S


def test_nothing_is_left_behind_by_many_exchanges(server: LocalServer) -> None:
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
    """A server in another process, and its address."""
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


def test_a_killed_peer_is_unavailable_at_once_and_what_came_stays(
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


def test_a_frozen_peer_is_a_deadline(peer: tuple[subprocess.Popen[str], str]) -> None:
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


def test_a_segment_cannot_be_cut_under_its_reader() -> None:
    own = OwnSegment(MIB)
    assert own.descriptor is not None
    for size in (0, 2 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(own.descriptor, size)
    peer = PeerSegment(os.dup(own.descriptor))
    np.frombuffer(own.buffer, np.uint8)[:] = 7
    assert np.frombuffer(peer.buffer, np.uint8).min() == 7
    assert not peer.buffer.is_mutable
    own.forget_descriptor()


def test_what_is_no_sealed_segment_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "plain"
    path.write_bytes(bytes(4096))
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 4096)
    before = len(os.listdir("/proc/self/fd"))
    for descriptor in (os.open(path, os.O_RDWR), os.dup(unsealed)):
        with pytest.raises(DataLossError, match="segment"):
            PeerSegment(descriptor)
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(unsealed)


def test_a_release_that_finds_the_socket_full_goes_later() -> None:
    sent: list[int] = []
    is_full = True

    def send(segment: int) -> bool:
        if not is_full:
            sent.append(segment)
        return not is_full

    holdings = shared_memory.Holdings(send)
    own = OwnSegment(MIB)
    assert own.descriptor is not None
    for segment in (1, 2):
        holdings.add(segment, os.dup(own.descriptor))
    first, second = holdings.take(1, 0, 100), holdings.take(2, 0, 100)
    del first
    holdings.flush()
    assert not sent
    is_full = False
    del second
    holdings.flush()
    assert sent == [1, 2]
    own.forget_descriptor()


def test_a_small_segment_goes_back_with_the_next_message() -> None:
    sent: list[int] = []
    holdings = shared_memory.Holdings(lambda segment: not sent.append(segment))
    own = OwnSegment(MIB // 2)
    assert own.descriptor is not None
    for segment in (1, 2):
        holdings.add(segment, os.dup(own.descriptor))
    first, second = holdings.take(1, 0, 100), holdings.take(2, 0, 100)
    del first
    assert not sent
    assert holdings.held_bytes == 2 * (MIB // 2)
    del second  # only one of them waits
    assert sent == [2]
    assert (holdings.carry(), holdings.carry()) == (1, None)
    assert holdings.held_bytes == 0
    own.forget_descriptor()


def test_an_answer_gives_back_what_the_request_came_in() -> None:
    client, server = connected()
    body = bytes(MIB // 4)
    try:
        for _ in range(50):
            client.send(Kind.MESSAGE, b"ask", body, deadline_s=time.monotonic() + TIMEOUT_S)
            request = server.receive(time.monotonic() + TIMEOUT_S)
            assert request is not None
            assert request.body == pa.py_buffer(body)
            del request
            server.send(Kind.MESSAGE, b"answer", deadline_s=time.monotonic() + TIMEOUT_S)
            assert client.receive(time.monotonic() + TIMEOUT_S) is not None
            assert client._pool.lent_bytes == 0
        assert client._pool.total_bytes <= MIB // 2
    finally:
        client.close()
        server.close()


def test_a_message_that_could_not_go_keeps_nothing() -> None:
    sender, receiver = connected()
    body = bytes(MIB // 4)
    try:
        sender.send(Kind.MESSAGE, b"m", body, deadline_s=time.monotonic() + TIMEOUT_S)
        assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None  # and is dropped
        assert send_until_refused(receiver, b"") > 10
        for _ in range(3):
            with pytest.raises(DeadlineExceededError):
                receiver.send(Kind.MESSAGE, b"m", deadline_s=time.monotonic() + 0.02)
        while sender._pool.lent_bytes:
            assert sender.receive(time.monotonic() + TIMEOUT_S) is not None
    finally:
        sender.close()
        receiver.close()


def connected() -> tuple[LocalConnection, LocalConnection]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return LocalConnection(ends[0]), LocalConnection(ends[1])


def send_until_refused(connection: LocalConnection, body: bytes, patience_s: float = 0.05) -> int:
    for count in range(10_000):
        try:
            connection.send(Kind.MESSAGE, b"m", body, deadline_s=time.monotonic() + patience_s)
        except DeadlineExceededError:
            return count
    raise AssertionError("nothing holds the sender back")


def test_what_nobody_asked_for_holds_the_sender_back() -> None:
    sender, receiver = connected()
    body = bytes(MIB)
    try:
        assert send_until_refused(sender, body) >= HELD_BYTES // MIB
        for _ in range(3):
            # One is read, one may follow; were all read, they would be copied without end.
            assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None
            assert send_until_refused(sender, body) == 1
    finally:
        sender.close()
        receiver.close()


def test_a_receiver_that_waits_gives_back_as_soon_as_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packet_socket, "SLICE_S", 30.0)
    sender, receiver = connected()
    sent = send_until_refused(sender, bytes(MIB))
    try:
        assert send_until_refused(receiver, b"") > 10  # the way back is full
        with ThreadPoolExecutor(2) as pool:
            for _ in range(sent):  # dropped at once, and none can be given back
                assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None
            next_one = pool.submit(receiver.receive, time.monotonic() + TIMEOUT_S)
            began_s = time.monotonic()
            # It needs a segment back, which comes behind all that fills the way.
            sender.send(Kind.MESSAGE, b"m", bytes(MIB), deadline_s=began_s + TIMEOUT_S)
            assert next_one.result(TIMEOUT_S) is not None
            assert time.monotonic() - began_s < AT_MOST_S
    finally:
        sender.close()
        receiver.close()


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
def test_the_way_is_chosen(
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


def test_shared_memory_that_was_asked_for_and_cannot_be_had(flight: FlightServer) -> None:
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


def test_a_protocol_that_is_none() -> None:
    asked = json.loads('{"exchange": "echo"}')
    with (
        pytest.raises(InvalidArgumentError, match="pigeon"),
        open_exchange("h:1", asked, protocol="pigeon", token="", tls=None, timeout_s=1),
    ):
        pass
