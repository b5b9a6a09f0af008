"""Which of several chiefs without a coordinator has the parameter servers."""

from __future__ import annotations

import functools
import itertools
from typing import Any, cast

import pytest

from pstrain.config import ParameterConfig
from pstrain.errors import AbortedError, DeadlineExceededError, UnavailableError
from pstrain.paramserver.server import Sessions
from pstrain.sessions.ids import is_older, new_session
from pstrain.trainer.client import RemoteParameters
from pstrain.v1.membership import Membership


class Servers:
    """Parameter servers that are started anew at will, and are silent for a number of requests."""

    def __init__(self, count: int) -> None:
        self.each = [Sessions() for _ in range(count)]
        self.silent: dict[int, int] = {}
        self.stage = 0

    def restart(self, *numbers: int) -> None:
        for number in numbers:
            self.each[number] = Sessions()

    def of(self, number: int) -> Sessions:
        if self.silent.get(number):
            self.silent[number] -= 1
            raise UnavailableError(f"server {number} does not answer")
        return self.each[number]


class Parameters:
    """The requests of one chief to the servers; ``events`` happen before its begins, in order."""

    session = ""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.addresses = [f"ps{number}" for number in range(len(servers.each))]
        self.events: list[Any] = []
        self.status_limits_s: list[float] = []

    def change_session(self, session: str) -> None:
        self.session = session

    def status(self, ps: int, *, timeout_s: float) -> dict[str, Any]:
        self.status_limits_s.append(timeout_s)
        return self._servers.of(ps).status()

    def sessions(self, *, timeout_s: float) -> list[Any]:  # noqa: ARG002
        return [self._session_of(number) for number in range(len(self.addresses))]

    def _session_of(self, number: int) -> Any:
        try:
            return self._servers.of(number).status()["session"]
        except UnavailableError:
            return None

    def read(self, _spec: Any) -> list[int]:
        return [self._servers.stage]

    def begin_session(self, ps: int, *conditions: str) -> bool:
        if self.events:
            self.events.pop(0)()
        self._servers.of(ps).begin(self.session, *conditions)
        return False

    def create(self, _spec: Any) -> None: ...


def chief(servers: Servers, start_timeout_s: float = 5.0) -> tuple[Membership, Parameters]:
    parameters = Parameters(servers)
    return member_of(parameters, start_timeout_s, is_chief=True), parameters


def member_of(parameters: Parameters, start_timeout_s: float, *, is_chief: bool) -> Membership:
    config = ParameterConfig(start_timeout_s=start_timeout_s)
    real = cast("RemoteParameters", parameters)
    return Membership(real, is_chief=is_chief, workers=2, config=config)


def test_chief_that_was_replaced_takes_no_server_back() -> None:
    servers = Servers(2)
    (old, _), (new, mine) = chief(servers), chief(servers)
    old.enter()
    new.enter()
    for restarted in ((), (0,), (1,)):
        servers.restart(*restarted)
        with pytest.raises(AbortedError):
            old.enter()
        assert old.was_replaced()
        assert {found.status()["session"] for found in servers.each} <= {None, mine.session}
        new.enter()
        assert new.is_intact()
        assert not new.was_replaced()


def test_chief_renews_its_session_on_servers_that_restart_meanwhile() -> None:
    servers = Servers(3)
    member, parameters = chief(servers)
    member.enter()
    seen = [parameters.session]
    later = new_session(seen)
    for restarted in ([0], [1, 2]):
        servers.restart(*restarted)
        servers.silent = {1: 2}
        parameters.events = [functools.partial(servers.restart, restarted[-1])]
        member.enter()
        assert member.is_intact()
        seen.append(parameters.session)
    assert all(is_older(one, other) for one, other in itertools.pairwise([*seen, later]))


def test_chief_gives_up_on_server_that_restarts_whenever_session_begins() -> None:
    servers = Servers(1)
    member, parameters = chief(servers, start_timeout_s=0.1)
    member.enter()
    parameters.events = [functools.partial(servers.restart, 0)] * 10_000
    with pytest.raises(DeadlineExceededError, match="stay up while the session begins"):
        member.enter()


def test_chief_gives_no_answer_of_a_server_more_time_than_it_waits_in_all() -> None:
    for start_timeout_s, most_s in ((2.0, 2.0), (600.0, 10.0)):
        member, parameters = chief(Servers(2), start_timeout_s)
        member.enter()
        assert parameters.status_limits_s
        assert max(parameters.status_limits_s) <= most_s


def test_new_chief_is_newer_than_servers_that_were_silent_at_first() -> None:
    servers = Servers(2)
    servers.each[1].begin("session-99999999999999999999-v1-ahead")
    servers.silent = {1: 2}
    member, _ = chief(servers)
    member.enter()
    assert member.is_intact()


def test_new_chief_gets_server_on_which_old_one_renews_its_session() -> None:
    servers = Servers(2)
    (old, _), (new, parameters) = chief(servers), chief(servers)
    old.enter()

    def old_renews() -> None:
        servers.restart(0)
        old.enter()

    parameters.events = [lambda: None, old_renews]
    new.enter()
    assert new.is_intact()
    with pytest.raises(AbortedError):
        old.enter()


def test_worker_that_gives_up_names_what_it_lacked() -> None:
    servers = Servers(2)
    worker = member_of(Parameters(servers), 0.1, is_chief=False)
    with pytest.raises(DeadlineExceededError, match=r"chief.*no session.*0 at ps0, 1 at ps1"):
        worker.enter()
    chief(servers)[0].enter()
    worker.enter()
    with pytest.raises(DeadlineExceededError, match=r"the chief.*have no values yet"):
        worker.await_ready()
    servers.silent = {1: 10_000}
    with pytest.raises(DeadlineExceededError, match=r"chief.*no answer.*server 1 at ps1"):
        worker.await_ready()
    servers.silent, servers.stage = {}, 2
    for wait in (worker.enter, worker.await_ready):
        with pytest.raises(DeadlineExceededError, match=r"the chief.*last training.*has ended"):
            wait()


def test_worker_that_waits_for_another_training_says_that_its_own_goes_on() -> None:
    servers = Servers(1)
    chief(servers)[0].enter()
    worker = member_of(Parameters(servers), 0.1, is_chief=False)
    servers.stage = 1
    worker.await_ready()
    with pytest.raises(DeadlineExceededError, match=r"next training.*was in has not ended"):
        worker.await_next(1)
