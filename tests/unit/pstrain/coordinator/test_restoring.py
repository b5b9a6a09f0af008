"""Restores while something else happens: a save ends, another loss, another program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator.restoring import _TRIES_MAX, Restorer, _Mark
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        if self.saves_meanwhile:
            self.restorer.committed(_Mark(7, 5, {3: 1}), "ckpt-2")
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

    def status(self, ps: int, *, timeout_s: float) -> dict[str, Any]:  # noqa: ARG002
        status = self._statuses[ps]
        if isinstance(status, Exception):
            raise status
        return {"session": status, "incarnation": "i"}


def test_what_a_save_that_ends_meanwhile_holds_is_gone_back_to_with_its_marks() -> None:
    """Closures in the new save do not run again, so an older one would lack what they changed."""
    cluster = Cluster()
    cluster.saves_meanwhile = True
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "ckpt-2", 5, {3: 1}]


def test_what_another_program_left_in_the_directory_is_not_gone_back_to() -> None:
    """A checkpoint of another program may have a higher number than those of this program."""
    cluster = Cluster()
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "ckpt-1", 0, {}]


def test_a_server_that_is_lost_while_everything_goes_back_has_it_go_back_once_more() -> None:
    cluster = Cluster(losses=2)
    cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun", "begun", "begun", "ckpt-1", 0, {}]
    assert cluster.restorer.restores == 1


def test_a_server_that_is_lost_each_time_is_given_up() -> None:
    cluster = Cluster(losses=_TRIES_MAX)
    with pytest.raises(ServerLostError):
        cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun"] * _TRIES_MAX


@pytest.mark.parametrize("lost", [None, UnavailableError("gone")])
def test_who_was_replaced_does_not_bring_back_what_its_successor_has_lost(lost: Any) -> None:
    cluster = Cluster(statuses=(lost, "another's"))
    with pytest.raises(AbortedError, match="has taken over parameter server 1"):
        cluster.restorer._lost_servers.find(True)
    found = Cluster(statuses=(lost, "mine")).restorer._lost_servers.find(True)
    assert "parameter server 0" in str(found)


def test_a_session_takes_the_place_of_no_other_than_the_one_that_it_names() -> None:
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


def test_a_server_without_a_session_is_given_to_who_has_looked_at_it() -> None:
    sessions = Sessions()
    with pytest.raises(ServerRestartedError, match="read the status of all"):
        sessions.begin("b", replaced="a", incarnation="the one before")
    assert sessions.status()["session"] is None
    sessions.begin("b", replaced="a", incarnation=sessions.status()["incarnation"])
    assert sessions.is_current("b")


def test_only_losses_are_gone_back_from_once_more() -> None:
    cluster = Cluster()

    def damaged(_path: str, **_options: bool) -> None:
        raise DataServiceError("damaged")

    cluster.restore = damaged  # type: ignore[method-assign]
    with pytest.raises(DataServiceError, match="damaged"):
        cluster.restorer._restore("a server is gone")
    assert cluster.done == ["begun"]
