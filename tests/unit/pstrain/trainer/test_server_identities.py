"""Servers that are asked who they are: at once, over streams that stay open, and not for long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.errors import DeadlineExceededError, UnavailableError
from pstrain.trainer import server_identities
from pstrain.trainer.server_identities import Identity, ServerIdentities

DEADLINE_S = 20.0


class Servers:
    """Servers that answer with their number, unless they are ``silent`` or ``gone``."""

    def __init__(self, count: int) -> None:
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self.opened: list[int] = []
        self.streams: list[Stream] = []
        self.speaks, self.closed = threading.Event(), threading.Event()
        self.identities = ServerIdentities(self.open, count)  # type: ignore[arg-type]

    def open(self, server: int, _timeout_s: float) -> Stream:
        self.opened.append(server)
        self.check(server, DEADLINE_S)
        self.streams.append(Stream(self, server))
        return self.streams[-1]

    def check(self, server: int, timeout_s: float) -> None:
        if server in self.gone:
            raise UnavailableError("nobody listens there")
        if server in self.silent and not self.speaks.wait(timeout_s):
            raise DeadlineExceededError("it says nothing")


class Stream:
    """An open stream to one server."""

    def __init__(self, servers: Servers, server: int) -> None:
        self._servers, self._server = servers, server
        self._asked = 0
        self.is_closed = False

    def send(self, _header: bytes, *, timeout_s: float) -> None:  # noqa: ARG002
        assert not self.is_closed
        self._asked += 1

    def recv(self, timeout_s: float) -> Any:
        assert self._asked
        self._asked -= 1
        self._servers.check(self._server, timeout_s)
        header = json.dumps({"incarnation": f"i{self._server}", "session": None})
        return SimpleNamespace(header=header.encode())

    def close(self) -> None:
        self.is_closed = True
        self._servers.closed.set()


@contextmanager
def closing(servers: Servers) -> Iterator[Servers]:
    try:
        yield servers
    finally:
        servers.speaks.set()
        servers.identities.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_identities, "_PATIENCE_S", DEADLINE_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_identities, "_PATIENCE_S", 0.05)


def answered(*servers: int) -> dict[int, Any]:
    return {server: Identity(f"i{server}", None) for server in servers}


@pytest.mark.usefixtures("patient")
def test_servers_are_asked_again_over_the_same_streams() -> None:
    with closing(Servers(3)) as servers:
        for _ in range(3):
            assert servers.identities.ask() == answered(0, 1, 2)
        assert sorted(servers.opened) == [0, 1, 2]
    assert all(stream.is_closed for stream in servers.streams)


@pytest.mark.usefixtures("patient")
def test_server_whose_stream_breaks_is_gone_only_if_no_other_can_be_opened() -> None:
    with closing(Servers(2)) as servers:
        servers.identities.ask()
        servers.gone.add(1)
        found = servers.identities.ask()
        assert isinstance(found.pop(1), UnavailableError)
        assert found == answered(0)
        servers.gone.clear()
        assert servers.identities.ask() == answered(0, 1)
        assert sorted(servers.opened) == [0, 1, 1, 1]


def until_answered(servers: Servers, wanted: dict[int, Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while servers.identities.ask() != wanted:
        assert time.monotonic() < deadline_s


@pytest.mark.usefixtures("impatient")
def test_silent_servers_are_left_out_and_keep_nobody_waiting() -> None:
    """They are asked once more, and not again before they answer."""
    with closing(Servers(4)) as servers:
        servers.silent = {0, 2}
        until_answered(servers, answered(1, 3))
        for _ in range(3):
            assert servers.identities.ask() == answered(1, 3)
        assert sorted(servers.opened) == [0, 1, 2, 3]
        servers.speaks.set()
        until_answered(servers, answered(0, 1, 2, 3))
        servers.speaks.clear()
        until_answered(servers, answered(1, 3))
        assert sorted(servers.opened) == [0, 0, 1, 2, 2, 3]


@pytest.mark.usefixtures("patient")
def test_only_the_first_call_waits_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Servers(2)) as servers:
        servers.silent = {0}
        with monkeypatch.context() as patch:
            patch.setattr(server_identities, "_PATIENCE_S", 0.05)
            until_answered(servers, answered(1))
        began_s = time.monotonic()
        assert servers.identities.ask() == answered(1)
        assert time.monotonic() - began_s < DEADLINE_S / 2


@pytest.mark.usefixtures("impatient")
def test_answers_to_what_was_asked_before_are_left_out() -> None:
    with closing(Servers(1)) as servers:
        servers.silent = {0}
        assert servers.identities.ask() == {}
        servers.identities.forget()
        found: list[Any] = []
        servers.speaks.set()
        deadline_s = time.monotonic() + DEADLINE_S
        while not servers.identities._streams:
            assert time.monotonic() < deadline_s
            found.append(servers.identities.ask())
        assert not any(found[:-1])
        assert servers.identities.ask() == answered(0)
        assert servers.opened == [0]


@pytest.mark.usefixtures("impatient")
def test_stream_that_opens_after_the_end_is_closed() -> None:
    with closing(Servers(1)) as servers:
        servers.silent = {0}
        servers.identities.ask()
    assert servers.closed.wait(DEADLINE_S)


@pytest.mark.usefixtures("patient")
def test_server_that_no_thread_can_ask_is_asked_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(Servers(2)) as servers:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert servers.identities.ask() == {}
        assert servers.identities.ask() == answered(0, 1)
