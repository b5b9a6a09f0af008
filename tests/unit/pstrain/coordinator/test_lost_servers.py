"""Which parameter servers count as lost: those that are gone or started anew, not slow ones."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator.lost_servers import LostServers
from pstrain.errors import DeadlineExceededError, UnavailableError

Answer = tuple[str | None, str] | Exception
"""The session and the incarnation of a server, or why it does not say."""


class Servers:
    """The servers of a strategy, whose answers are given."""

    session = "mine"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.addresses = tuple(f"ps{number}:1" for number in range(len(answers)))
        strategy: Any = SimpleNamespace(session=self.session, parameters=self)
        self.lost = LostServers(strategy)

    def open_identity_stream(self, ps: int, timeout_s: float) -> Any:
        """Opens a stream over which a server says who it is; raises what it answers instead."""
        assert timeout_s > 0
        return SimpleNamespace(
            send=lambda _header, timeout_s: self._answer(ps),  # noqa: ARG005
            recv=lambda _timeout_s: SimpleNamespace(header=json.dumps(self._answer(ps)).encode()),
            close=lambda: None,
        )

    def _answer(self, ps: int) -> dict[str, Any]:
        answer = self.answers[ps]
        if isinstance(answer, Exception):
            raise answer
        session, incarnation = answer
        return {"session": session, "incarnation": incarnation}


def test_servers_that_answer_as_before_are_not_lost() -> None:
    servers = Servers(("mine", "a"), ("mine", "b"))
    assert servers.lost.find(False) is None
    assert servers.lost.find(False) is None


def test_slow_server_is_not_lost() -> None:
    servers = Servers(DeadlineExceededError("frozen"), ("mine", "b"))
    assert servers.lost.find(False) is None
    servers.answers[1] = UnavailableError("refused")
    assert "server 1 at ps1:1 is gone" in str(servers.lost.find(False))


@pytest.mark.parametrize("session", ["mine", None])
def test_server_of_another_incarnation_is_lost_until_it_is_restored(session: str | None) -> None:
    servers = Servers(("mine", "a"), ("mine", "b"))
    servers.lost.find(False)
    servers.answers[1] = (session, "another")
    assert "server 1 at ps1:1 was started anew" in str(servers.lost.find(False))
    servers.answers[1] = ("mine", "another")
    assert servers.lost.find(False)
    servers.lost.forget()
    assert servers.lost.find(False) is None


def test_connection_that_broke_off_is_a_loss_though_all_servers_answer() -> None:
    """What the server held is not known: it may have been replaced since the last look."""
    assert "broke off" in str(Servers(("mine", "a")).lost.find(True))


def test_first_of_several_lost_servers_is_named() -> None:
    servers = Servers(UnavailableError("refused"), (None, "b"), UnavailableError("refused"))
    assert "server 0" in str(servers.lost.find(True))
