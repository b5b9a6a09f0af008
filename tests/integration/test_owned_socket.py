"""A socket that one thread shuts down while another closes it: no other socket is affected."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from dataservice.runtime.exchanges import owned_socket
from dataservice.runtime.exchanges.owned_socket import OwnedSocket

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
