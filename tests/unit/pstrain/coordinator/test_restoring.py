"""Restores during which a save ends, another server is lost, or another program takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator.restoring import _TRIES_MAX, Restorer, _Moment
from pstrain.errors import (
    AbortedError,
    DataServiceError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.paramserver.server import Sessions


class Cluster:
    """The strategy, servers, checkpoints and work of one restorer.

    ``statuses``: the session of each server, None for a restarted one, an error for a lost one.
    """

    session = "mine"
    addresses = ("ps0:1", "ps1:1")
    variables = ()

    def __init__(self, *, losses: int = 0, statuses: tuple[Any, ...] = ()) -> None:
        self.checkpoint, self.parameters, self.followers = self, self, list[Any]()
        self.latest_checkpoint = "ckpt-9"
        self.done: list[Any] = []
        self.saves_meanwhile = False
        self._losses, self._statuses = losses, statuses
        work: Any = SimpleNamespace(
            **dict.fromkeys(("hold", "resume", "undo_round"), lambda: None),
            **dict.fromkeys(("wait_disconnected", "forget"), lambda _: None),
            requeue=lambda parts: self.done.append(parts) or 0,
        )
        iterators: Any = SimpleNamespace(rewind_since=self.done.append)
        self.restorer = Restorer(self, self, work, iterators, lambda: None, newest="ckpt-1")

    def wait(self, timeout: float | None = None) -> None: ...

    def holds(self) -> frozenset[Any]:
        return frozenset()

    @contextmanager
    def alone(self) -> Iterator[None]:
        if self.saves_meanwhile:
            self.restorer.committed(_Moment(7, 5, {3: 1}), "ckpt-2")
        yield

    def begin_anew(self) -> None:
        self.done.append("begun")

    def restore(self, path: str, *, with_attached: bool, keeps_rates: bool) -> None:
        assert with_attached
        assert keeps_rates, "the program itself goes on"
        if self._losses:
            self._losses -= 1
            raise ServerLostError("gone again")
        self.done.append(path)

    def open_identity_stream(self, ps: int, _timeout_s: float) -> Any:
        status = self._statuses[ps]
        if isinstance(status, Exception):
            raise status
        said = json.dumps({"session": status, "incarnation": "i"}).encode()
        return SimpleNamespace(
            send=lambda _header, timeout_s: None,  # noqa: ARG005
            recv=lambda _timeout_s: SimpleNamespace(header=said),
            close=lambda: None,
        )


def test_restore_uses_checkpoint_committed_meanwhile_with_its_marks() -> None:
    """Closures in the new save do not run again, so an older one would lack what they changed."""
    cluster = Cluster()
    cluster.saves_meanwhile = True
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "ckpt-2", 5, {3: 1}]


def test_restore_ignores_checkpoint_of_another_program_in_directory() -> None:
    """A checkpoint of another program may have a higher number than those of this program."""
    cluster = Cluster()
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "ckpt-1", 0, {}]


def test_restore_is_repeated_when_server_is_lost_during_it() -> None:
    cluster = Cluster(losses=2)
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "begun", "begun", "ckpt-1", 0, {}]
    assert cluster.restorer.restores == 1


def test_restore_fails_when_server_is_lost_in_every_try() -> None:
    cluster = Cluster(losses=_TRIES_MAX)
    with pytest.raises(ServerLostError):
        cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun"] * _TRIES_MAX


@pytest.mark.parametrize("lost", [None, UnavailableError("gone")])
def test_replaced_coordinator_does_not_restore_servers_of_its_successor(lost: Any) -> None:
    cluster = Cluster(statuses=(lost, "another's"))
    with pytest.raises(AbortedError, match="has taken over parameter server 1"):
        cluster.restorer._lost_servers.find(True)
    found = Cluster(statuses=(lost, "mine")).restorer._lost_servers.find(True)
    assert "parameter server 0" in str(found)


def test_session_replaces_only_the_session_it_names() -> None:
    sessions = Sessions()
    sessions.begin("a", replaced="none that it knows of")
    sessions.begin("b")
    for replaced in ("a", "c"):
        with pytest.raises(AbortedError, match="another coordinator"):
            sessions.begin("d", replaced=replaced)
    assert sessions.is_current("b")
    sessions.begin("d", replaced="b")
    for _ in range(2):
        sessions.begin("d", replaced="b")
    assert sessions.is_current("d")


def test_restarted_server_accepts_only_session_that_names_its_incarnation() -> None:
    sessions = Sessions()
    with pytest.raises(ServerRestartedError, match="read the status of all"):
        sessions.begin("b", replaced="a", incarnation="the one before")
    assert sessions.status()["session"] is None
    sessions.begin("b", replaced="a", incarnation=sessions.status()["incarnation"])
    assert sessions.is_current("b")


def test_restore_is_not_repeated_after_errors_other_than_server_loss() -> None:
    cluster = Cluster()

    def damaged(_path: str, **_options: bool) -> None:
        raise DataServiceError("damaged")

    cluster.restore = damaged  # type: ignore[method-assign]
    with pytest.raises(DataServiceError, match="damaged"):
        cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun"]
