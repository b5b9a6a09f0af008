"""Shared-memory segments, and the connections that lend them and get them back."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.errors import DataLossError, DeadlineExceededError
from dataservice.runtime.exchanges import owned_socket, packet_socket, shared_memory
from dataservice.runtime.exchanges.local_connection import LocalConnection
from dataservice.runtime.exchanges.message import Kind
from dataservice.runtime.exchanges.segment_pool import HELD_BYTES
from dataservice.runtime.exchanges.shared_memory import OwnSegment, PeerSegment, is_supported
from tests.integration.exchange_ends import AT_MOST_S, MIB, TIMEOUT_S
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")


def test_segment_cannot_be_resized_and_is_read_only_for_its_peer() -> None:
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


def test_descriptor_without_sealed_segment_is_refused(tmp_path: Any) -> None:
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


def test_release_is_sent_later_when_the_socket_is_full() -> None:
    sent: list[int] = []
    is_full = True

    def send(segment: int) -> bool:
        if not is_full:
            sent.append(segment)
        return not is_full

    peer_segments = shared_memory.PeerSegments(send)
    own = OwnSegment(8 * MIB)  # too large for its return to wait for the next message
    assert own.descriptor is not None
    for segment in (1, 2):
        peer_segments.add(segment, os.dup(own.descriptor))
    first, second = peer_segments.take(1, 0, 100), peer_segments.take(2, 0, 100)
    del first
    peer_segments.flush()
    assert not sent
    is_full = False
    del second
    peer_segments.flush()
    assert sent == [1, 2]
    own.forget_descriptor()


def test_one_released_segment_waits_for_the_next_message() -> None:
    sent: list[int] = []
    peer_segments = shared_memory.PeerSegments(lambda segment: not sent.append(segment))
    own = OwnSegment(4 * MIB)  # as much as a step of thousands of examples pulls
    assert own.descriptor is not None
    for segment in (1, 2):
        peer_segments.add(segment, os.dup(own.descriptor))
    first, second = peer_segments.take(1, 0, 100), peer_segments.take(2, 0, 100)
    del first
    assert not sent
    assert peer_segments.held_bytes == 2 * 4 * MIB
    del second  # only one return waits for the next message
    assert sent == [2]
    assert (peer_segments.carry(), peer_segments.carry()) == (1, None)
    assert peer_segments.held_bytes == 0
    own.forget_descriptor()


def test_reply_returns_the_segment_of_its_request() -> None:
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


def test_message_that_timed_out_keeps_no_segment() -> None:
    sender, receiver = connected()
    body = bytes(MIB // 4)
    try:
        sender.send(Kind.MESSAGE, b"m", body, deadline_s=time.monotonic() + TIMEOUT_S)
        assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None  # dropped at once
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


def test_unreceived_messages_hold_the_sender_back() -> None:
    sender, receiver = connected()
    body = bytes(8 * MIB)  # a smaller one's segment would wait for the receiver's next message
    try:
        assert send_until_refused(sender, body) >= HELD_BYTES // len(body)
        for _ in range(3):
            # Each message read lets one follow; if all were read, sends and copies would never end.
            assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None
            assert send_until_refused(sender, body) == 1
    finally:
        sender.close()
        receiver.close()


def test_waiting_receiver_returns_segments_as_soon_as_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packet_socket, "LOOK_S", 30.0)
    sender, receiver = connected()
    sent = send_until_refused(sender, bytes(MIB))
    try:
        assert send_until_refused(receiver, b"") > 10  # the way back is full
        with ThreadPoolExecutor(2) as pool:
            for _ in range(sent):  # dropped at once, but no segment can be given back
                assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None
            next_one = pool.submit(receiver.receive, time.monotonic() + TIMEOUT_S)
            began_s = time.monotonic()
            # The sender needs a segment back, whose return queues behind all that fills the way.
            sender.send(Kind.MESSAGE, b"m", bytes(MIB), deadline_s=began_s + TIMEOUT_S)
            assert next_one.result(TIMEOUT_S) is not None
            assert time.monotonic() - began_s < AT_MOST_S
    finally:
        sender.close()
        receiver.close()


def test_sender_goes_on_without_the_segments_that_cannot_be_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (owned_socket, packet_socket):
        monkeypatch.setattr(module, "LOOK_S", TIMEOUT_S)
    sender, receiver = connected()
    deadline_s = time.monotonic() + TIMEOUT_S
    sent = send_until_refused(sender, bytes(8 * MIB))
    began_s = time.monotonic()
    try:
        held = [receiver.receive(deadline_s) for _ in range(sent)]
        with ThreadPoolExecutor(1) as pool:
            next_one = pool.submit(receiver.receive, deadline_s)
            wait_until(lambda: receiver._reading, "the receiver to wait in the kernel")
            assert send_until_refused(receiver, b"") > 10  # the way back is full
            held.clear()
            assert receiver._peer_segments.pending, "nobody can give them back now"
            # Those that only the receiver has are so few that the sender may make another.
            sender.send(Kind.MESSAGE, b"m", bytes(8 * MIB), deadline_s=deadline_s)
            assert next_one.result(TIMEOUT_S) is not None
        assert time.monotonic() - began_s < AT_MOST_S
    finally:
        sender.close()
        receiver.close()


def test_connection_may_not_rest_while_segments_are_owed_to_the_peer() -> None:
    sender, receiver = connected()
    try:
        assert receiver.may_rest
        sent = send_until_refused(sender, bytes(MIB))
        assert send_until_refused(receiver, b"") > 10  # the way back is full
        for _ in range(sent):
            assert receiver.receive(time.monotonic() + TIMEOUT_S) is not None
        with pytest.raises(DeadlineExceededError):
            receiver.receive(time.monotonic())
        assert not receiver.may_rest
        with ThreadPoolExecutor(1) as pool:
            next_one = pool.submit(receiver.receive, time.monotonic() + TIMEOUT_S)
            sender.send(Kind.MESSAGE, b"m", bytes(MIB), deadline_s=time.monotonic() + TIMEOUT_S)
            assert next_one.result(TIMEOUT_S) is not None
        assert receiver.may_rest
    finally:
        sender.close()
        receiver.close()
