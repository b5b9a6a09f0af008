"""A socket that one thread shuts down while another waits or closes it."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice.errors import UnavailableError
from dataservice.runtime.exchanges import owned_socket
from dataservice.runtime.exchanges.byte_streams import PlainStream
from dataservice.runtime.exchanges.owned_socket import LOOK_S, OwnedSocket
from dataservice.runtime.exchanges.packet_socket import PacketSocket

TIMEOUT_S = 30.0


def test_close_waits_for_concurrent_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once closed, its descriptor's number belongs to the next connection."""
    begun, may_go_on = threading.Event(), threading.Event()
    numbers: list[int] = []

    def shut_down_late(sock: Any) -> None:
        begun.set()
        assert may_go_on.wait(TIMEOUT_S)
        numbers.append(sock.fileno())

    monkeypatch.setattr(owned_socket, "_shut_down", shut_down_late)
    mine, peer = socket.socketpair()
    with peer:
        owned = OwnedSocket(mine)
        number = mine.fileno()
        shutting = threading.Thread(target=owned.shut_down, daemon=True)
        shutting.start()
        assert begun.wait(TIMEOUT_S)
        closing = threading.Thread(target=owned.close, daemon=True)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        may_go_on.set()
        for thread in (shutting, closing):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        assert numbers == [number]
        owned.shut_down()
        owned.close()
        assert numbers == [number], "there is nothing to shut down any more"
        assert owned.is_gone()


def test_is_gone_is_true_at_both_ends_after_shut_down() -> None:
    one, other = map(OwnedSocket, socket.socketpair())
    assert not one.is_gone()
    one.shut_down()
    assert one.is_gone()
    assert other.is_gone()
    one.close()
    other.close()


def test_kernel_bounds_a_wait_by_its_deadline_and_is_told_only_of_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, peer = socket.socketpair()
    owned = OwnedSocket(mine)
    told: list[float] = []
    set_option = owned._set_option

    def noted(option: int, value: bytes) -> None:
        set_option(option, value)
        seconds, microseconds = struct.unpack(
            "@ll", mine.getsockopt(socket.SOL_SOCKET, option, len(value))
        )
        told.append(seconds + microseconds / 1e6)

    monkeypatch.setattr(owned, "_set_option", noted)
    with peer:
        for left_s in (math.inf, 30.0, LOOK_S, 1.9, 1.0, 0.25, 5.0):
            assert owned._may_block(socket.SO_RCVTIMEO, left_s)
            assert told[-1] <= left_s + 0.01, "it counts in ticks of its clock"
        for left_s in (0.2, 0.0, -1.0):
            assert not owned._may_block(socket.SO_RCVTIMEO, left_s)
        assert told == pytest.approx([LOOK_S, 0.25, LOOK_S], abs=0.02)
        assert owned._may_block(socket.SO_SNDTIMEO, 5.0)
        assert len(told) == 4, "the directions have limits of their own"
        owned.close()
        with pytest.raises(UnavailableError):
            owned._may_block(socket.SO_RCVTIMEO, 1.0)


class NothingOwed:
    """The segments to give back over a connection that has none."""

    pending: tuple[int, ...] = ()

    def flush(self) -> bool:
        return False


def stream_and_peer() -> tuple[OwnedSocket, socket.socket, Callable[[float], object]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        stream = PlainStream(server.accept()[0])
    room = memoryview(bytearray(10))
    return stream, peer, lambda deadline_s: stream.receive(room, deadline_s, whole=True)


def packets_and_peer() -> tuple[OwnedSocket, socket.socket, Callable[[float], object]]:
    mine, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packets = PacketSocket(mine)
    return packets, peer, lambda deadline_s: packets.receive(NothingOwed(), deadline_s)


@pytest.mark.parametrize("ends", [stream_and_peer, packets_and_peer])
@pytest.mark.parametrize("how", ["the peer is gone", "shut down here"])
def test_wait_ends_without_a_look_when_the_connection_ends(
    ends: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_socket, "LOOK_S", 4 * TIMEOUT_S)
    owned, peer, receive = ends()
    with peer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receive, math.inf)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        began_s = time.monotonic()
        if how == "shut down here":
            owned.shut_down()
        else:
            peer.close()
        with pytest.raises(UnavailableError):
            waiting.result(TIMEOUT_S)
        assert time.monotonic() - began_s < TIMEOUT_S
    owned.close()
