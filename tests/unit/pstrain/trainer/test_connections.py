"""Streams to servers: each thread gets those that it used last, and threads open no more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dataservice.runtime.exchanges.message import Message
from pstrain.trainer.connections import Connections, Request


class Stream:
    """A stream whose first reply comes when two streams have been asked."""

    shares_memory = True

    def __init__(self, both_asked: threading.Barrier, used: dict[int, list[Stream]]) -> None:
        self._both_asked, self._used = both_asked, used
        self._is_first = True

    def send(self, *_message: object, timeout_s: float) -> None:  # noqa: ARG002
        self._used.setdefault(threading.get_ident(), []).append(self)

    def recv(self, timeout_s: float) -> Message:
        if self._is_first:
            self._both_asked.wait(timeout_s)
            self._is_first = False
        return Message(b"reply", None)

    def close(self) -> None:
        pass


def test_each_thread_gets_the_stream_that_it_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    both_asked, used = threading.Barrier(2), dict[int, list[Stream]]()

    def open_stream(_self: Any, streams: dict[int, Any], server: int, _deadline_s: float) -> None:
        streams[server] = Stream(both_asked, used)

    monkeypatch.setattr(Connections, "_open", open_stream)
    connections = Connections(["host:1"], token="t", tls=None, remedy="", connect_timeout_s=5.0)

    def ask() -> int:
        connections.ask({0: Request(b"request")}, 30.0, repeat=True)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as new:
        for asked in [one.submit(ask), other.submit(ask)]:
            asked.result(30.0)
        for thread in (one, other, one, other, other):
            ident = thread.submit(ask).result(30.0)
            assert used[ident][-1] is used[ident][0]
        first, second = (streams[0] for streams in used.values())
        assert first is not second
        assert used[new.submit(ask).result(30.0)][0] in (first, second)
    connections.close()


def test_streams_that_a_signal_handler_used_meanwhile_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[InterruptedStream] = []
    closed: list[InterruptedStream] = []

    class InterruptedStream(Stream):
        """A stream whose first reply is awaited while a signal handler asks, too."""

        def recv(self, timeout_s: float) -> Message:  # noqa: ARG002
            if opened == [self]:
                connections.ask({0: Request(b"of the handler")}, 30.0, repeat=True)
            return Message(b"reply", None)

        def close(self) -> None:
            closed.append(self)

    def open_stream(_self: Any, streams: dict[int, Any], server: int, _deadline_s: float) -> None:
        streams[server] = InterruptedStream(threading.Barrier(1), {})
        opened.append(streams[server])

    monkeypatch.setattr(Connections, "_open", open_stream)
    connections = Connections(["host:1"], token="t", tls=None, remedy="", connect_timeout_s=5.0)
    connections.ask({0: Request(b"request")}, 30.0, repeat=True)
    connections.close()
    assert len(opened) == 2
    assert set(closed) == set(opened)
